"""Stacks of WebAssembly, switched by the browser's JavaScript Promise Integration (JSPI).

`run_sync(promise)` suspends the stack that calls it until the promise is resolved, and
`callPromising` runs a Python function on a stack of its own.  So a parked stack is a promise, and
waking it means to resolve that.
"""

from collections.abc import Callable
from typing import Any

from pyodide.code import run_js
from pyodide.ffi import create_proxy, run_sync

_promises = run_js("""(() => {
  const parked = new Map();
  const park = (me) => new Promise((resume) => parked.set(me, resume));
  const wake = (other) => { const resume = parked.get(other); parked.delete(other); resume(); };
  return {
    wake,
    change(me, other) { const promise = park(me); wake(other); return promise; },
    start(me, body) {
      const promise = park(me);
      Promise.resolve().then(() => body.callPromising()).finally(() => body.destroy());
      return promise;
    },
  };
})()""")
wake = _promises.wake
_change, _start = _promises.change, _promises.start


def switch(me: int, other: int) -> None:
    """Park this stack as number `me`, and wake the one that is parked as number `other`."""
    run_sync(_change(me, other))


def start(me: int, body: Callable[[], Any]) -> None:
    """Park this stack as number `me`, and run body() on a new one."""
    run_sync(_start(me, create_proxy(body)))
