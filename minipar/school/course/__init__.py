"""The course: graded assignments, beside the lessons and exercises that a learner does alone.

    lessons.py          where the lessons are, and which the learner has run
    milestones/         train a GPT with the learner's own functions in place
    puzzles.py          broken training programs, with hints and explanations
    assignments/        the graded tasks as data, with handouts: one folder for each assignment
    checker/            run a student's function on sandboxed ranks; compare and count
    grading/            points for each case of each task of a submission
    packaging/          an assignment as folders and archives to hand out and to upload

A student's function runs under the checker, on the student's machine and on the instructor's.
"""
