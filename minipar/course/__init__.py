"""The course: graded assignments, beside the lessons and exercises that a learner does alone.

    assignments/        the tasks as data, with handouts: one folder for each assignment
    tasks.py            read the tasks; draw the parameters of a course by its key
    checker/            run a student's function on ranks that can do no harm; compare and count
    submission.py       read what a student handed in
    grade.py            points for each case of each task
    proof.py            show that the cases tell right from wrong

A student's function runs under the checker: on the student's machine as on the instructor's.
"""
