"""Containment of processes that run untrusted code.

    parent                  the agent, or a step of the scheduler: never runs untrusted code
     └─ reaper              `sandbox.reaper`: kills what the child leaves, then ends as the child did
         └─ process 1       of a PID namespace, where the kernel allows one: ends it with all that is in it
             └─ child       `worker.runner.child` or a module of `compiler.children`

The parent starts one command. That process calls `sandbox.containment.enter`, which forks: the caller stays
as the reaper and leaves its standard input and output to the child. The signal `reaper.END_SIGNAL` to the
reaper ends all of them. Each process ends with its parent. `sandbox.kinds` says what each kind of child may
do.
"""
