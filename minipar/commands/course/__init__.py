"""The commands of the course.

    exercise.py     minipar exercise: write parts of minipar yourself
    assignment.py   minipar course: build, grade and report on assignments

The first works while the code that learners change does not even parse.
"""
