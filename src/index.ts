/**
 * llm-proxy as a library: the server, the inference worker that connects to it, and the agent loop and agent runners of
 * trainers. The import has no side effects.
 */

export { ERROR_CATALOGUE, type ErrorCode, ProxyError } from './base/errors.ts'
export type { Logger } from './base/logger.ts'
export { SERVE_COMMAND as SERVE, type ServerConfig as ServeConfig } from './commands.ts'
export { type RunningServer, type RunningWorker, startServer, startWorker } from './main.ts'
export { type EnginesConfig as EngineChoice, openEngines } from './open-engines.ts'
export type {
  AgentLoopExtraFields,
  AgentLoopMetrics,
  AgentLoopOutput,
} from './protocol/schema/agent-loop-output.ts'
export { loadConfig } from './proxy/config/load.ts'
export { WORKER, type WorkerConfig } from './proxy/config/options/worker.ts'
export { createLocalBackend, type LocalBackendOptions } from './proxy/engines/dispatch/local-backend.ts'
export type { AgentLoopOutputs } from './rollout/agent-loop-output.ts'
export { RemoteAgentLoop, type RemoteAgentLoopOptions } from './rollout/remote-agent-loop.ts'
export { AgentCoreRunner, type AgentCoreRunnerOptions } from './rollout/runners/agentcore/agentcore-runner.ts'
export { CommandRunner, type CommandRunnerOptions } from './rollout/runners/command-runner.ts'
export {
  HarborClient,
  type HarborClientOptions,
  type HarborMetadata,
  type HarborRun,
} from './rollout/runners/harbor-client.ts'
export { HarborRunner, type HarborRunnerOptions } from './rollout/runners/harbor-runner.ts'
export { HttpRunner, type HttpRunnerOptions } from './rollout/runners/http-runner.ts'
export type { AgentResult, AgentRunner, AgentStatus, AgentTask, Sample } from './rollout/runners/runner.ts'
export type { AgentWork, RewardVerifier as Verifier } from './rollout/runners/verifier.ts'
export { InferenceWorkerClient } from './worker/inference-worker-client.ts'
