"""The sandbox that candidates run in, and the agent's end of the pipes to it.

    agent                 `worker.main`: talks to the service, never runs a candidate
     └─ reaper            `sandbox.reaper`: kills what the child leaves, then ends as the child did
         └─ process 1     of a PID namespace, where the kernel allows one: ends it with all that is in it
             └─ child     `worker.runner.child`: builds and runs candidates, without network and privileges

The agent starts `python -m worker.runner.child`. That process forks, stays as the reaper and leaves its
standard input and output to the child, so that requests and replies (`worker.runner.frames`) bypass the
reaper. SIGTERM to the reaper kills the child. Each process dies with the one above it.
"""
