"""Control groups of sandboxes, in whichever form this machine has them.

| form | limits and cores | freeze, kill, CPU seconds |
|---|---|---|
| v2 | in the version 2 tree, where controllers were delegated to this process | there as well |
| hybrid | in the version 1 trees, a group in each | in the version 2 tree, which has no controllers |
| affinity | none: see `process_tree.pin_tree` and the resource limits of commands | none |

Groups are made below this process's own ones; of the others, only version 2 groups that were delegated are changed.
"""

from callsheet.managers.sandbox.cgroups.capabilities import Form, bounds_socket_memory, form_of, limit_capabilities
from callsheet.managers.sandbox.cgroups.files import remove_groups
from callsheet.managers.sandbox.cgroups.layout import GroupLayout, find_layout, probe_layout
from callsheet.managers.sandbox.cgroups.limits import LimitEvents
from callsheet.managers.sandbox.cgroups.sandbox_group import CommandLeaf, SandboxGroup
from callsheet.managers.sandbox.cgroups.scope import obtain_groups

__all__ = [
    "CommandLeaf",
    "Form",
    "GroupLayout",
    "LimitEvents",
    "SandboxGroup",
    "bounds_socket_memory",
    "find_layout",
    "form_of",
    "limit_capabilities",
    "obtain_groups",
    "probe_layout",
    "remove_groups",
]
