import type { AgentLoopOutputs } from '../../rollout/agent-loop-output.ts'

/** Statistics of a run's completed samples. */
export class SampleStatistics {
  done = 0
  /** Samples whose attempts all failed. */
  failed = 0
  /** Samples without trainable tokens, including failed ones. */
  padding = 0
  rows = 0
  turns = 0
  tries = 0
  promptTokens = 0
  /** Trained tokens. */
  sampledTokens = 0
  #rewardSum = 0
  #rewarded = 0
  readonly #startedAtMs = performance.now()

  add(outputs: AgentLoopOutputs): void {
    const [{ metrics, reward_score: reward }] = outputs
    this.done += 1
    this.failed += metrics.failed
    this.padding += metrics.padding
    this.tries += metrics.tries
    if (reward !== null) {
      this.#rewardSum += reward
      this.#rewarded += 1
    }
    if (metrics.padding === 1) return
    this.rows += outputs.length
    for (const { prompt_ids, response_mask, num_turns } of outputs) {
      const sampled = response_mask.reduce((sum, bit) => sum + bit, 0)
      this.sampledTokens += sampled
      this.promptTokens += prompt_ids.length + response_mask.length - sampled
      this.turns += num_turns
    }
  }

  get seconds(): number {
    return (performance.now() - this.#startedAtMs) / 1000
  }

  get tokensPerSecond(): number {
    return this.sampledTokens / Math.max(this.seconds, 1e-3)
  }

  /** The mean over the samples with a reward; undefined if there are none. */
  get meanReward(): number | undefined {
    return this.#rewarded === 0 ? undefined : this.#rewardSum / this.#rewarded
  }
}

/** Formats the statistics for a line of progress: `2 failed, 1,234 tokens/s, mean reward 0.52` */
export function formatProgress({ failed, tokensPerSecond, meanReward }: SampleStatistics): string {
  const reward = meanReward === undefined ? 'no reward' : `mean reward ${meanReward.toFixed(2)}`
  return `${failed} failed, ${Math.round(tokensPerSecond).toLocaleString('en')} tokens/s, ${reward}`
}

/** Formats the statistics for the end of a run, one figure a line. */
export function formatSummary(tally: SampleStatistics, planned: number): string {
  const { done, failed, padding, rows, turns, tries, promptTokens, sampledTokens, meanReward, seconds } =
    tally
  const figures: [string, string][] = [
    ['samples', `${done} of ${planned}`],
    ['failed', String(failed)],
    ['nothing to train on', String(padding)],
    ['tries', String(tries)],
    ['rows', String(rows)],
    ['turns', String(turns)],
    ['tokens read', promptTokens.toLocaleString('en')],
    [
      'tokens sampled',
      `${sampledTokens.toLocaleString('en')} (${Math.round(tally.tokensPerSecond).toLocaleString('en')}/s)`,
    ],
    ['mean reward', meanReward?.toFixed(4) ?? '-'],
    ['seconds', seconds.toFixed(1)],
  ]
  const width = Math.max(...figures.map(([name]) => name.length))
  return figures.map(([name, value]) => `${name.padEnd(width)}  ${value}`).join('\n')
}
