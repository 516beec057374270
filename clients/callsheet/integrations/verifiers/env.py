"""An env of verifiers that lends each run a trajectory of a Callsheet job."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import quote

import verifiers.v1 as vf
from callsheet.client import Client, Job
from callsheet.client.gateway import gateway_url
from callsheet.integrations.borrowed_sandbox import BorrowedSandbox, BorrowedSandboxSettings
from callsheet.integrations.verifiers.notes import note_end
from callsheet.integrations.verifiers.runtime import CallsheetRuntime, told_to_verifiers


class CallsheetEnvConfig(vf.EnvConfig):
    """Settings of the scheduler's address and of the sandboxes.

    Attributes:
        agent: The one seat. The runtime in it only shows that the sandbox is reached without a tunnel.
        scheduler: Its address, "host:port". Empty takes the environment's variables, as `Client.from_env` does.
        job: The job, which all processes of a run share.
        share: Its fair share relative to other jobs.
        grace_s: Seconds for which its work goes on without a client; None takes the server's default.
        generate: "verifiers" asks the run's own client for replies. "callsheet" asks Callsheet's gateway, in each
            run's trajectory; that is for evaluation, since a trainer of verifiers wants tokens of its own client.
        image: The sandboxes' root file system, if a task names none.
        cpu: Cores of each command.
        network: Destinations that sandboxes may reach, "host:port".
        command_s: The most seconds of a command; None takes the server's default.
        program_s: The most seconds of an agent's main program.
        deadline_s: The longest life of a trajectory in seconds.
    """

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.DockerConfig())
    scheduler: str = ""
    job: str = "verifiers"
    share: float = 1.0
    grace_s: float | None = None
    generate: Literal["verifiers", "callsheet"] = "verifiers"
    image: str = ""
    cpu: float = 1.0
    network: tuple[str, ...] = ()
    command_s: float | None = None
    program_s: float = 3600.0
    deadline_s: float | None = None


class CallsheetEnv(vf.Env[CallsheetEnvConfig]):
    """Runs the one agent in a trajectory of its own, and closes that by how the run ended.

    A failure of the service is an error of the trace, which is then no sample. `--env.retries` runs the task again.
    """

    def __init__(self, config: CallsheetEnvConfig) -> None:
        super().__init__(config)
        self._client: Client | None = None

    async def stop(self) -> None:
        """Closes the connection. The job lives on for its grace, as other processes may share it."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def run(self, task: vf.Task, agents: vf.Agents[vf.Agent]) -> None:
        """Runs one episode."""
        runtime = CallsheetRuntime(await self.sandbox(task))
        agent = agents.agent
        trace: vf.Trace | None = None
        try:
            if self.config.generate == "callsheet":
                await runtime.start()
                agent.ctx = replace(agent.ctx, client=self._gateway(runtime.sandbox))
            trace = await agent.run(task, runtime=runtime)
        finally:
            if trace is not None:
                runtime.end, runtime.reason = note_end(trace, runtime.sandbox.trajectory.trajectory_id)
            await runtime.stop()

    async def sandbox(self, task: vf.Task) -> BorrowedSandbox:
        """Returns the sandbox of a task, which is not made yet; to be redefined for other needs."""
        of = self.config
        with told_to_verifiers():
            job = await self._job()
        trajectory = job.trajectory(f"{task.key[:16]}-{uuid.uuid4().hex[:12]}", deadline_s=of.deadline_s)
        settings = BorrowedSandboxSettings(
            image=task.data.image or of.image,
            cpu=of.cpu,
            network=of.network,
            command_s=of.command_s,
            program_s=of.program_s,
        )
        return BorrowedSandbox(trajectory, settings)

    async def _job(self) -> Job:
        """The job; opening it again attaches. Each loop of each process has a connection of its own."""
        if self._client is None:
            self._client = Client.from_env(target=self.config.scheduler)
        return await self._client.open_job(self.config.job, share=self.config.share, grace_s=self.config.grace_s)

    def _gateway(self, sandbox: BorrowedSandbox) -> Any:
        """The client of a run whose replies are generate actions of its trajectory.

        The token of the scheduler, where it asks for one, is in CALLSHEET_TOKEN, as for every client.
        """
        gateway = gateway_url(sandbox.trajectory.client.options)
        headers = {
            "X-Callsheet-Job": quote(sandbox.trajectory.job_id, safe=""),
            "X-Callsheet-Trajectory": quote(sandbox.trajectory.trajectory_id, safe=""),
        }
        return vf.EvalClientConfig(base_url=f"{gateway}/v1", api_key_var="CALLSHEET_TOKEN", headers=headers)
