"""The protocol of runs, which agents and workflows share.

Pure decisions: `fold` (what a log says), `steps` (the next step), `outcome` (the terminal event), `record`
(the events of a commit), `call_attempt` (the next step of one call), `results`, `workspaces`.

Procedures over `ports`: `claim` → `loop` → `coordinator`, `owner`, `approvals`, `handlers`, and `runner` on
the runner's side. The protocol test runs this very code under crashes, duplicates, reordering and delay at
every await.

Adapters to the bus: `conversation_log`, `snapshot_store`, `notifications`, `placement`, `lease`.
"""
