import type { AgentTask } from '../../src/rollout/runners/runner.ts'

/** Creates the first attempt of an arbitrary rollout. */
export function createAgentTask(more: Partial<AgentTask> = {}): AgentTask {
  return {
    trialId: 'trial-1',
    sessionId: 'trial-1',
    tryNumber: 1,
    sample: { instance_id: 'trial' },
    taskPath: undefined,
    samplingParams: {},
    openaiBaseUrl: 'http://127.0.0.1:1/trial-1/v1',
    anthropicBaseUrl: 'http://127.0.0.1:1/trial-1',
    apiKey: 'trial-1',
    modelName: undefined,
    untilEnded: () => Promise.reject(new Error('no test waits for this session')),
    ...more,
  }
}
