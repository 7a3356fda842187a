"""The command line: `main.py`, and one file for each `minipar COMMAND`.

    compress/       quantize, prune, distill, study
    inference/      convert, generate, serve, replay
    simulate/       simulate
    course/         exercise, course (assignment.py), lessons, lesson, milestone, puzzle
    doctor/         what `minipar doctor` looks at
    train, compare, evaluate, collective, schedule, shard, plan, calibrate    a command each
    parser.py       flags; tables.py: tables for people and, with --json, for scripts

Most files of a command begin with main(options, output).  Its Options follow: fields that say what
they may be, need and exclude (train/option.py).  They are checked before main is called.  The files
of `train`, `compare`, `doctor`, `course` and `exercise` add their arguments to argparse themselves.
`study` runs other commands, and `calibrate` writes a cluster file for `simulate`; otherwise
commands do not call each other.
"""
