"""A lesson in a notebook: its functions are cells, and `%%ranks 4` runs its `main`.

    %load_ext minipar
    from minipar.notebook.lesson import open_lesson
    __file__, __doc__ = open_lesson(1)              as they are in the script

docs/builder/notebooks.py makes the notebooks of all lessons (`make notebooks`).
"""

import ast
import sys

from ..course.lessons import find_lesson


def open_lesson(number: int) -> tuple[str, str]:
    """The path and the docstring of a lesson's script, whose helpers can be imported from now on.

    Raises NoLesson if there is none of this number.
    """
    script = find_lesson(str(number)).script
    if str(script.parent) not in sys.path:
        sys.path.insert(0, str(script.parent))
    # the notebook's own text has what the option omits
    sys.argv = [str(script), "--no-introduction"]
    return str(script), ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
