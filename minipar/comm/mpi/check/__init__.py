"""MINIPAR_CHECK=1: real ranks check each other's calls, and report a mistake instead of a hang.

    communicator.py     what each rank notes down of its messages and collectives
    mismatch.py         the collectives of all ranks, compared
    observer.py         the thread that tells the other ranks what this one waits for
    waits.py            what a rank waits for, and what it has done for the waits of others
    deadlock.py         which ranks can never go on, and the report
    places.py           the lines of the program

The check costs some microseconds a collective.  Without the variable none of it is imported.
"""
