"""The protocol of runs, which agents and workflows share.

Pure decisions: `fold` (the state of a log), `steps` (the next step), `outcome` (results and the terminal
event), `call_attempt` (the next step of one call), `workspaces`.

Procedures over `ports`: `claim` → `loop` → `coordinator`, `owner`, `approvals`, `handlers`, and `runner` on
the runner's side. The protocol test runs this code with crashes, duplicates, reordering and delay at every
await.

Adapters to the bus: `conversation_log`, `snapshot_store`, `notifications`, `placement`, `lease`.
"""
