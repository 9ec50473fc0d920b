/** The demo's trainer: runs rollouts of an agent command and rewards its answers. */
import type { AgentLoopOutputs } from '../../rollout/agent-loop-output.ts'
import { mapConcurrently } from '../../rollout/map-concurrently.ts'
import { RemoteAgentLoop } from '../../rollout/remote-agent-loop.ts'
import { CommandRunner } from '../../rollout/runners/command-runner.ts'
import type { AgentWork } from '../../rollout/runners/verifier.ts'
import { getOwnCommand } from '../own-command.ts'

export interface DemoRollout {
  task: DemoTask
  rows: AgentLoopOutputs
}

interface DemoOptions {
  proxyUrl: string
  count: number
  concurrency: number
  signal: AbortSignal
  onDone(rollout: DemoRollout): void
}

/** The amount that each calculation subtracts from the reward. */
const COST_OF_STEP = 0.05

/** Runs the rollouts concurrently and returns them in the order of the tasks. @throws ProxyError; `signal.reason` */
export async function runRollouts({
  proxyUrl,
  count,
  concurrency,
  signal,
  onDone,
}: DemoOptions): Promise<DemoRollout[]> {
  const runner = new CommandRunner({
    command: [...getOwnCommand(), 'demo-agent'],
    verifier: judge,
    sandbox: { mode: 'none' },
    warn() {},
  })
  const loop = new RemoteAgentLoop({ proxyUrl, runner, retryBaseDelayMs: 200 }, {})
  const rollouts: DemoRollout[] = []
  const tasks = Array.from({ length: count }, (_, i) => TASKS[i % TASKS.length]!)
  try {
    await mapConcurrently(tasks, concurrency, async (task, index) => {
      const rows = await loop.run(
        {},
        { instance_id: 'demo', prompt: task.question, answer: task.answer },
        signal,
      )
      rollouts[index] = { task, rows }
      onDone(rollouts[index])
    })
  } finally {
    await loop.close()
  }
  return rollouts
}

/** Computes the rewards. The agent prints a line for each calculation, and its answer last. */
async function judge({ task, output }: AgentWork): Promise<Record<string, number>> {
  const lines = output.trim().split('\n')
  const numbers = (lines.at(-1)!.match(/-?\d+(?:\.\d+)?/g) ?? []).map(Number)
  const isCorrect = numbers.includes((task.sample as unknown as DemoTask).answer)
  return { correct: isCorrect ? 1 : 0, steps: -COST_OF_STEP * (lines.length - 1) }
}

interface DemoTask {
  question: string
  answer: number
}

/**
 * The questions of the demo. The embedded engine can answer arithmetic with tool calls; to other questions it responds
 * with random text.
 */
const TASKS: readonly DemoTask[] = [
  { question: 'What is 12 * 34?', answer: 408 },
  { question: 'Compute (12 + 7) * 3 step by step.', answer: 57 },
  { question: 'What is 144 divided by 12?', answer: 12 },
  { question: 'Compute 100 - (8 * 9), please.', answer: 28 },
  { question: 'How much is 7 plus 8?', answer: 15 },
  { question: 'Which number, squared, gives eighty-one?', answer: 9 },
  { question: 'What is 2.5 * 4?', answer: 10 },
  { question: 'Compute (81 / 9) - 4 and tell me the result.', answer: 5 },
]
