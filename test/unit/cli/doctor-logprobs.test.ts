/** The conclusions of `llm-proxy doctor` from candidates for the first token at temperature 1 and 2. */
import t from 'tap'
import { judgeLogprobs } from '../../../src/cli/doctor/logprobs.ts'

const WARM = { sea: -0.5, lake: -2.5, pond: -4 }

interface Case {
  warm?: Record<string, number>
  hot: Record<string, number>
  mode?: string
  expected: object
}

const CASES: Record<string, Case> = {
  'the gap is unchanged': {
    hot: { sea: -0.51, lake: -2.52 },
    expected: { state: 'ok', seen: /of the model, before temperature and filters \(raw_logprobs\)/ },
  },
  'the gap is halved': {
    // The sampled token comes first, as engines list it.
    hot: { pond: -2.75, lake: -2, sea: -1 },
    expected: { state: 'ok', seen: /before filters \(temperature_logprobs\)/ },
  },
  'the gap is halved, and two tokens have all the probability': {
    hot: { pond: -9999, lake: -1.313, sea: -0.313 },
    expected: { state: 'ok', seen: /sampled from.*\(processed_logprobs\)/ },
  },
  'two tokens have all the probability at temperature 1, too': {
    warm: { sea: -0.001, lake: -7 },
    hot: { sea: -0.03, lake: -3.53 },
    expected: { state: 'ok', seen: /does not show/ },
  },
  'the option is right': {
    hot: { sea: -0.313, lake: -1.313 },
    mode: 'processed_logprobs',
    expected: { state: 'ok', seen: /\(processed_logprobs\)$/ },
  },
  'the option is wrong': {
    hot: { sea: -0.313, lake: -1.313 },
    mode: 'raw_logprobs',
    expected: { state: 'failure', remedy: 'give --logprobs-mode processed_logprobs, or omit it' },
  },
  'the option assumes filters that are not applied': {
    hot: { sea: -1, lake: -2 },
    mode: 'processed_logprobs',
    expected: { state: 'failure', remedy: 'give --logprobs-mode temperature_logprobs, or omit it' },
  },
  'the option is an unknown mode': { hot: WARM, mode: 'mine', expected: { state: 'ok', seen: /\(mine\)$/ } },
  neither: { hot: { sea: -0.5, lake: -2 }, expected: { state: 'warning', seen: /0\.75 times as far apart/ } },
  'equal tokens': {
    warm: { a: -1, b: -1.01 },
    hot: { a: -1, b: -1.01 },
    expected: { state: 'ok', seen: /unknown/ },
  },
  logits: { warm: { a: 12.5, b: 9 }, hot: { a: 12.5, b: 9 }, expected: { state: 'failure', seen: /logits/ } },
  'no candidates reported': { hot: {}, expected: { state: 'ok', seen: /too few/ } },
}

for (const [name, { warm = WARM, hot, mode, expected }] of Object.entries(CASES))
  t.test(name, async (t) => {
    const finding = judgeLogprobs(new Map(Object.entries(warm)), new Map(Object.entries(hot)), mode)
    t.match(finding, { about: 'logprobs', ...expected })
  })
