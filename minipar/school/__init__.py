"""What teaches: exercises and milestones for a learner, assignments for a course, notebooks.

    exercises/      write a function of minipar yourself, and have it checked
    course/         lessons found, milestones, graded assignments
    notebook/       `%%ranks`: a cell on simulated ranks

None of the three needs the code of another room to be imported: exercises work while that code is
broken, and `course/grading` travels alone into a container.
"""
