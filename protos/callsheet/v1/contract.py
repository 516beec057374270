"""The number of the contract that this code implements, and its additions by number; see GetServerInfoResponse.

`CONTRACT` grows by one with every addition. What a scheduler does not know its clients refuse by name, call by call and
field by field. A manager refuses the attempt of an action in which it does not know all. Only a side below the other's
`OLDEST_CONTRACT` is refused as a whole. tests/unit/protos/contract_surface.txt names all that there is with its number,
and a test holds it against the protos.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

CONTRACT: Final = 4
OLDEST_CONTRACT: Final = 1

_PACKAGE: Final = "callsheet.v1."
_CAME_WITH: Final = {
    2: """
    AdminService.HealManager AdminService.ListActions BufferStatus BufferedTrajectory Canary CanaryAnswer
    ChatMessage ClientService.ListBuffer ClientService.SettleBatch ClientService.TakeBatch
    CloseTrajectoryRequest.reason CloseTrajectoryRequest.result ConversationText ENGINE_STATE_PROVED
    ENGINE_STATE_QUARANTINED ENGINE_STATE_UNSPECIFIED ENGINE_STATE_UPDATING ENGINE_STATE_WAITING EngineStatus
    EngineWeights EnvResetInput.build EnvResetResult.image_digest ErrorDetail.forgotten GenerateResult.begun_version
    GenerateResult.text GetServerInfoResponse.caller_scope GetServerInfoResponse.caller_subject
    GroupSpec.infra_budget GroupStatus.dropped GroupStatus.masked HealManagerRequest HostedService.copies_sandboxes
    HostedService.instance_slots HostedService.kv_tokens HostedService.problem HostedService.weights ImageBuild
    ItemOpened.life JobSpec.dead_sandbox_is_infra JobSpec.idle_timeout JobSpec.max_buffered JobStatus.buffer
    JobStatus.dead_sandboxes JobStatus.forgotten_actions JobStatus.idle_closes_in JobStatus.life JobStatus.rollouts
    JudgeInput LeasedBatchStatus LengthShare ListActionsRequest ListActionsResponse ListBufferRequest
    ListBufferResponse ModelScoreInput.text PublishPolicyVersionRequest.rollout REWARD_BACKGROUND_KILL
    REWARD_BACKGROUND_RUN REWARD_BACKGROUND_STOP REWARD_BACKGROUND_UNSPECIFIED ResourceDemand.max_milli_units
    ResourceDemand.min_milli_units RewardInput.judge RewardInput.teacher RewardResult.line_s RewardResult.log_probs
    RewardResult.restore_s RewardResult.text RewardResult.token_ids RolloutPlan RolloutStatus SETTLEMENT_ACKNOWLEDGE
    SETTLEMENT_EXTEND SETTLEMENT_GIVE_BACK SETTLEMENT_UNSPECIFIED SamplingParameters.ignore_eos
    SchedulerItem.service_demand SchedulerItem.update_weights ScriptScoreInput.background ServiceDemand
    ServiceState.instance_slots ServiceState.others_kv_tokens ServiceState.others_sequences ServiceState.problem
    ServiceState.weights SettleBatchRequest Staleness.admit_within Staleness.select_within TakeBatchRequest
    TakeBatchResponse TeacherInput TensorSpec TestSuiteInput.background TestSuiteInput.tests TrajectoryBatch
    TrajectoryResult TransferGroup UPDATE_MODE_ABORT UPDATE_MODE_DRAIN UPDATE_MODE_KEEP UPDATE_MODE_UNSPECIFIED
    UpdateReport UpdateWeights WAIT_REASON_OTHERS_FIRST WAIT_REASON_WEIGHTS WEIGHTS_STANDING_INITIAL
    WEIGHTS_STANDING_PROVED WEIGHTS_STANDING_UNPROVED WEIGHTS_STANDING_UNSPECIFIED WEIGHTS_STANDING_UPDATING
    WeightSource
    """,
    3: "AttemptEnded.waited_s Timeline.waited_s",
    4: """
    ActionHistory ActionSpec.traceparent AdminService.ListActionHistory AdminService.ListTrajectoryHistory
    AdminService.ListClosedJobs ClosedJob ListClosedJobsRequest ListClosedJobsResponse
    ListActionHistoryRequest ListActionHistoryResponse ListTrajectoryHistoryRequest ListTrajectoryHistoryResponse
    TrajectoryHistory TrajectorySummary AttemptEnded.sandbox_held_mib Cost DrainManagerRequest.deadline_s
    DrainManagerRequest.dry_run
    DrainManagerResponse.attempts DrainManagerResponse.sandbox_count DrainManagerResponse.sandboxes
    EnvResetInput.guaranteed_memory GetServerInfoRequest.token_id GetServerInfoResponse.prices GetStatusResponse.lost
    EndCount ExplainResponse.trajectory_id GetStatusResponse.ends ManagerStatus.loads ServiceLoad
    GetStatusResponse.wanted Grant.expected_execution_s GroupStatus.cost HostedService.demand JobStatus.cost LostManager
    ManagerStatus.leaves_by ManagerStatus.leaving ManagerStatus.sandbox_memory_mib ManagerStatus.waiting_for_memory
    REWARD_PLACE_EMPTY SandboxState.held_mib ServiceState.demand ServiceState.waiting_for_memory TrajectoryStatus.cost
    Usage.cost WantedUnits
    """,
}
"""By contract: rpcs, values of enums and fields; a message, or a service, for all that it had at first."""

_SINCE: Final = {_PACKAGE + name: contract for contract, names in _CAME_WITH.items() for name in names.split()}


def since(name: str) -> int:
    """Returns with which contract an rpc, a field or a value of an enum came, by its full name."""
    return _SINCE.get(name) or _SINCE.get(name.rpartition(".")[0], 1)


def unknown_in(message: Message, contract: int) -> str | None:
    """Returns the full name of something in a message that came after a contract; None if there is nothing."""
    return next((name for name in _names_in(message) if since(name) > contract), None)


def unknown_field(message: Message) -> str | None:
    """Returns a field of a message that this code does not know, as it came with a later contract; None without any."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()  # type: ignore[no-untyped-call, unused-ignore]
    return None if known.ByteSize() == message.ByteSize() else next(_unknown_in(message))


def _unknown_in(message: Message) -> Iterator[str]:
    unknown: Any = UnknownFieldSet(message)  # its types lack the iteration that it has
    yield from (f"field {each.field_number} of {message.DESCRIPTOR.name}" for each in unknown)
    for _, value in message.ListFields():
        for each in _each(value):
            if isinstance(each, Message):
                yield from _unknown_in(each)


def _names_in(message: Message) -> Iterator[str]:
    """Yields the names of the fields that are set, and of the values of those that are enums."""
    for field, value in message.ListFields():
        yield field.full_name
        for each in _each(value):
            if isinstance(each, Message):
                yield from _names_in(each)
            elif field.enum_type is not None and each in field.enum_type.values_by_number:
                scope = field.enum_type.full_name.rpartition(".")[0]
                yield f"{scope}.{field.enum_type.values_by_number[each].name}"


def _each(value: Any) -> Any:
    """The values of a field: of a map, of a repeated one, or the one."""
    if isinstance(value, int | float | str | bytes | Message):
        return (value,)
    return value.values() if hasattr(value, "values") else value
