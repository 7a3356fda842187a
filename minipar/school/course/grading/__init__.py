"""Grading: points for each case of each task of a submission.

    tasks.py            read tasks; draw the parameters of a course by its key
    assignment.py       an assignment: tasks, handout, rubric, solutions of earlier tasks
    readers.py          read folders and archives, without following links
    submission.py       read what a student handed in, and find the tasks in it
    grade.py            run and judge every case
    rules.py            late days, partial credit, a text for students
    results.py          the results for Gradescope and Autolab, written whole
    program.py          one submission, or a folder of them
    __main__.py         the same from the command line, without the rest of minipar
    report.py           statistics of the cases, from a folder of results
    proof.py            show that the cases tell right from wrong

This package and `checker` need only Python and NumPy, and travel together into a container.
"""
