"""The commands of the course.

    exercise.py     minipar exercise: write parts of minipar yourself
    lessons.py      minipar lessons: the path; lesson.py: minipar lesson 12
    milestone.py    minipar milestone: train with your own functions in place
    puzzle.py       minipar puzzle: broken training programs, and the tools that find the mistake
    assignment.py   minipar course: build, grade and report on assignments

`exercise.py` works even while the code that learners change does not parse.
"""
