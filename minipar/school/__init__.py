"""The teaching material: exercises and milestones for a learner, graded assignments, notebooks.

    exercises/      write a function of minipar yourself, and have it checked
    course/         lessons, milestones, puzzles, graded assignments
    notebook/       `%%ranks`: a cell on simulated ranks
    toml_files.py   reads the TOML files of exercises, tasks and others, and checks their entries

`exercises` imports nothing that learners change, so it works while that code is broken.  The
course's `checker` and `grading` need NumPy alone, and travel with toml_files.py into a container.
"""
