"""Multi-turn environments in which a model acts by calling tools. See `docs/environments.md` for authors."""

from envs.actions import call, parse_action
from envs.group import score_group
from envs.mix import Mix, mix
from envs.registry import UnknownEnvironment, known_ids, load, make, register
from envs.scoring import reward
from envs.tool_env import FormatError, InfrastructureError, ToolEnv
from envs.tools import tool
from envs.types import Message, Split, Status, Task, ToolCall, ToolSpec
from rewards.compose import RewardError, Score

register("code_exec-v0", "envs.code_exec.env:CodeExec")
register("doc_search-v0", "envs.doc_search.env:DocSearch")
register("negotiation-v0", "envs.negotiation.env:Negotiation")
register("openenv-v0", "envs.openenv:OpenEnv")
register("scored-v0", "envs.scored:Scored")
register("verifiers-v0", "envs.verifiers:Verifiers")

__all__ = [
    "FormatError",
    "InfrastructureError",
    "Message",
    "Mix",
    "RewardError",
    "Score",
    "Split",
    "Status",
    "Task",
    "ToolCall",
    "ToolEnv",
    "ToolSpec",
    "UnknownEnvironment",
    "call",
    "known_ids",
    "load",
    "make",
    "mix",
    "parse_action",
    "register",
    "reward",
    "score_group",
    "tool",
]
