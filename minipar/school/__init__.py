"""The teaching material: exercises and milestones for a learner, graded assignments, notebooks.

    exercises/      write a function of minipar yourself, and have it checked
    course/         lessons found, milestones, puzzles, graded assignments
    notebook/       `%%ranks`: a cell on simulated ranks
    toml_files.py   reads and checks the files in which exercises and tasks are written

`exercises` imports nothing that learners change, so it works while that code is broken.  The
course's `checker` and `grading` need NumPy alone, and travel with the loader into a container.
"""
