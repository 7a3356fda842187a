"""The lessons' kit, and helpers that measure what a lesson shows.

    kit.py                     Lesson: header, tables, picture, takeaway, exercises      all lessons
    rows.py                    Row: a predicted value beside a counted or timed one      all lessons
    page.py                    a lesson's page: guess, derivation, answers, algorithm    all lessons
    kept_trace.py              the trace that a lesson writes to out/NN/trace.json       all lessons
    measuring.py               traces, rounds, seconds, totals     00, 02-11, 13-19, 21, 23, 27, 28
    auto_choice.py             why "auto" takes which algorithm                               02, 03
    lesson_NN.py               the library beside the algorithm of lesson NN        one a lesson
    gpt_flops.py               FLOPs of a GPT, predicted by kind of operation                     00
    bug_zoo.py                 four programs to fix                                               01
    observed_step.py           a step of a data-parallel strategy                              07-10
    plain_mlp.py               the library's MLP with given weights                    07-12, 20, 21
    pipeline_runs.py           run batches through pipeline stages, and measure them           11-13
    pipeline_timelines.py      times of a timeline, and a timeline of times                   12, 13
    cached_runs.py             a small GPT that decodes from a cache                          26, 30

A helper that one lesson alone uses keeps that lesson short enough to read in one go.
"""
