"""The lessons' kit, and helpers that measure what a lesson shows.

    kit.py                     Lesson: header, tables, picture, takeaway, exercises      all lessons
    rows.py                    Row: a predicted value beside a counted or timed one      all lessons
    page.py                    a lesson's page: guess, derivation, answers, algorithm    all lessons
    kept_trace.py              the trace that a lesson writes to out/NN/trace.json       all lessons
    measuring.py               traces, rounds, critical path, seconds, totals      02-09, 14-17, 23
    auto_choice.py             why "auto" takes which algorithm                               02, 03
    lesson_00.py, lesson_01.py, lesson_02.py, lesson_03.py, lesson_04.py, lesson_05.py, lesson_12.py,
    lesson_17.py, lesson_18.py, lesson_19.py
                               the library beside the algorithm of that lesson
    gpt_flops.py               FLOPs of a GPT, predicted by kind of operation                     00
    bug_zoo.py                 four programs to fix                                               01
    observed_step.py           a step of a data-parallel strategy                              07-10
    two_columns.py             AlexNet's layout                                                   11
    pipeline_runs.py           run batches through pipeline stages, and measure them           11-13
    pipeline_timelines.py      times of a timeline, and a timeline of times                   12, 13
    expert_layer.py            a layer with experts, and one process to compare with              17
    mesh_step.py               a step on a mesh, bytes by axis                                    18
    recomputation.py           steps with rematerialization plans                                 20
    states_in_files.py         weights and optimizer states that wait in a file                   21
    mixed_precision_step.py    steps in 16 bits                                                   22
    quantized_mlp.py           a small MLP to quantize                                            24
    teacher.py                 a teacher and its students                                         25
    cached_runs.py             a small GPT that decodes from a cache                          26, 30
    virtual_engine.py          an engine in virtual time: steps of round numbers                  30

A helper that one lesson alone uses keeps that lesson short enough to read in one go.
"""
