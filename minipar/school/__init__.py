"""What teaches: exercises and milestones for a learner, assignments for a course, notebooks.

    exercises/      write a function of minipar yourself, and have it checked
    course/         lessons found, milestones, puzzles, graded assignments
    notebook/       `%%ranks`: a cell on simulated ranks
    toml_files.py   the loader of what exercises and tasks are written in

`exercises` imports nothing that learners change, so it works while that code is broken.  The
course's `checker` and `grading` need NumPy alone, and travel with the loader into a container.
"""
