// A worker of the page: Pyodide with minipar's source tree in memory.  It answers one request after
// another, {call: "run_lesson" or "check_exercise", args}; what Python prints is sent line by line.
// The page ends a request that takes too long by ending the worker.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const SITE_PACKAGES = "/lib/python3.13/site-packages";
const TREE = "/minipar";

async function unpack(python, file, folder) {
  const response = await fetch(new URL(file, import.meta.url));
  if (!response.ok) throw new Error(`${file}: ${response.status} ${response.statusText}`);
  python.FS.mkdirTree(folder);
  python.unpackArchive(await response.arrayBuffer(), "zip", { extractDir: folder });
}

async function start() {
  const print = (line) => postMessage({ line });
  const python = await loadPyodide({ stdout: print, stderr: print });
  await Promise.all([unpack(python, "numpy.zip", SITE_PACKAGES),
    unpack(python, "packages.zip", SITE_PACKAGES), unpack(python, "minipar.zip", TREE)]);
  await python.runPythonAsync(`
import os, sys
sys.path[:0] = ["${TREE}/docs/browser", "${TREE}", "${TREE}/lessons"]
os.chdir("${TREE}")
import session`);
  postMessage({ ready: true });
  return python;
}

const started = start();
started.catch((error) => postMessage({ failed: String(error.message || error) }));

onmessage = async ({ data: { call, args } }) => {
  const python = await started;
  python.globals.set("request", python.toPy([call, args]));
  try {
    // Not callPromising: runPythonAsync also lets Python switch stacks.
    const passed = await python.runPythonAsync("getattr(session, request[0])(*request[1])");
    postMessage({ passed });
  } catch (error) {
    postMessage({ failed: String(error.message || error) });
  }
};
