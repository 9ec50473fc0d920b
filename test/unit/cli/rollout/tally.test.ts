import t from 'tap'
import { formatProgress, formatSummary, SampleStatistics } from '../../../../src/cli/rollout/tally.ts'
import { createAgentLoopOutputs } from '../../../helpers/agent-loop-outputs.ts'

t.test('the counts of a run add up', async (t) => {
  const counts = new SampleStatistics()
  t.match(formatProgress(counts), /^0 failed, 0 tokens\/s, no reward$/)
  counts.add(createAgentLoopOutputs(1, { reward_score: 1 }))
  counts.add(createAgentLoopOutputs(3, { reward_score: 0.5 }, { tries: 2 }))
  counts.add(createAgentLoopOutputs(1, { reward_score: null }))
  counts.add(
    createAgentLoopOutputs(
      1,
      { reward_score: null, response_mask: [0] },
      { failed: 1, padding: 1, tries: 4 },
    ),
  )
  t.match(counts, {
    done: 4,
    failed: 1,
    padding: 1,
    rows: 5,
    turns: 10,
    tries: 8,
    promptTokens: 15,
    sampledTokens: 10,
  })
  t.equal(counts.meanReward, 0.75, 'among judged rollouts, each counts once however many rows it has')
  t.match(formatProgress(counts), /^1 failed, [\d,]+ tokens\/s, mean reward 0\.75$/)
  const summary = formatSummary(counts, 6)
  for (const line of [/^samples +4 of 6$/m, /^failed +1$/m, /^rows +5$/m, /^mean reward +0\.7500$/m])
    t.match(summary, line)
})
