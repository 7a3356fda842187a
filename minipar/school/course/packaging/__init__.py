"""Packaging: an assignment as folders and archives that can be handed out and uploaded.

    build.py            all of it, and the guide for assistants: `minipar course build`
    student.py          the package for students, without any answers
    handout.py          the handout in Markdown and HTML
    slides.py           slides of a lesson: `minipar course slides`
    selection.py        the parts of an assignment's texts that are about the chosen tasks
    files/              files that are copied unchanged, and texts with gaps that are filled in

An assignment is made in one draft folder, which gets its name when it is complete.
"""
