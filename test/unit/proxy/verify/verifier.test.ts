/** `verify` detects each of eight planted faults, in both wire formats, and accepts clean data. */
import t, { type Test } from 'tap'
import { CLIENT_OF_KIND } from '../../../../src/proxy/engines/clients/client-of-kind.ts'
import { verifyTurns } from '../../../../src/proxy/verify/run.ts'
import { type VerifiableTurn, Verifier, type VerifyOptions } from '../../../../src/proxy/verify/verifier.ts'
import {
  createRandom,
  type ScoringEngine,
  startScoringEngine,
  TableModel,
} from '../../../helpers/scoring-engines.ts'

const KINDS = ['vllm', 'sglang'] as const
type Kind = (typeof KINDS)[number]

const POLICY = new TableModel(1)
const LENGTH = 60

interface SampleOptions {
  temperature?: number
  topP?: number
  model?: TableModel
  /** The prompt that the engine really received. Default: the recorded one. */
  seen?: number[]
}

/** Creates a turn as recorded from an engine of this kind. */
function createTurn(
  kind: Kind,
  index: number,
  { temperature = 1, topP = 1, model = POLICY, seen }: SampleOptions = {},
) {
  const prompt = [3, 1, 4, 1, 5, 9, 2, 6].map((id) => id + index)
  const sampling = { temperature, topP, random: createRandom(100 + index) }
  const { ids, raw, scaled } = model.sample(seen ?? prompt, LENGTH, sampling)
  const turn: VerifiableTurn = {
    sessionId: 's',
    turnId: `t-${index}`,
    index,
    status: 'completed',
    exact: true,
    model: 'policy',
    params: { temperature, top_p: topP },
    promptTokenIds: prompt,
    completionTokenIds: ids,
    completionLogprobs: kind === 'sglang' ? scaled : raw,
    weightVersionStart: '1',
    weightVersionEnd: '1',
  }
  return turn
}

/**
 * Creates a turn of an engine that reported the tokens left by top_p for each token, and the token's logprob
 * among them.
 */
function createMaskedTurn(kind: Kind, index: number, temperature = 1): VerifiableTurn {
  const turn = createTurn(kind, index, { temperature, topP: 0.6 })
  const sampling = { temperature, topP: 0.6, random: createRandom(100 + index) }
  const { filtered, masks } = POLICY.sample(Array.from(turn.promptTokenIds), LENGTH, sampling)
  return { ...turn, samplingMask: masks, samplingLogprobs: filtered }
}

async function setUp(t: Test, kind: Kind, models: Record<string, TableModel> = { policy: POLICY }) {
  const server = await startScoringEngine(t, kind, models)
  const engine = CLIENT_OF_KIND[kind]({ url: server.url })
  t.teardown(() => engine.close())
  return { server, engine }
}

async function verifyAll(
  engine: Awaited<ReturnType<typeof setUp>>['engine'],
  turns: readonly VerifiableTurn[],
  options: VerifyOptions = {},
) {
  const { signal } = new AbortController()
  const verifier = new Verifier(engine, await engine.checkHealth(signal), options)
  const results: Awaited<ReturnType<Verifier['verify']>>['result'][] = []
  const from = async function* () {
    yield* turns
  }
  const run = await verifyTurns(verifier, from(), { limit: 100, signal, onTurn: (one) => results.push(one) })
  return { run, results }
}

/** Asserts that the fault is found, in the second of three turns, and returns its result. */
async function findFault(t: Test, kind: Kind, fault: VerifiableTurn, models?: Record<string, TableModel>) {
  const { engine } = await setUp(t, kind, models)
  const { run, results } = await verifyAll(engine, [createTurn(kind, 0), fault, createTurn(kind, 2)])
  t.equal(run.verdict, 'differs')
  t.same(
    results.map(({ verdict }) => verdict),
    ['same', 'differs', 'same'],
  )
  t.equal(run.differing, 1)
  return results[1]!
}

for (const kind of KINDS) {
  t.test(`${kind}: clean turns pass at any temperature, and the control is detected`, async (t) => {
    const { engine } = await setUp(t, kind)
    const turns = [1, 0.7, 1.3, 0].map((temperature, index) => {
      const turn = createTurn(kind, index, { temperature: temperature || 1 })
      return { ...turn, params: { temperature } }
    })
    const { run, results } = await verifyAll(engine, turns)
    t.equal(run.verdict, 'same')
    t.equal(run.compared, 4)
    t.same(run.control, { caught: true, turns: 1 })
    t.ok(
      results.every(({ comparison }) => comparison!.max_difference < 1e-9),
      'to the last digit',
    )
    t.match(run.overall, {
      tokens: 4 * LENGTH,
      ratio_outside: 0,
      ratio: { min: Number, p50: Number, max: Number },
    })
  })

  t.test(`${kind}: shifted logprobs are detected and identified`, async (t) => {
    const turn = createTurn(kind, 1)
    const { completionLogprobs: logprobs } = turn
    const shifted = [logprobs[LENGTH - 1]!, ...Array.from(logprobs).slice(0, -1)]
    const { hint } = await findFault(t, kind, { ...turn, completionLogprobs: shifted })
    // The first token has no predecessor, so the comparison omits it.
    t.equal(hint, 'each logprob is that of the token before it')
  })

  t.test(`${kind}: one wrong id is detected at its position`, async (t) => {
    const turn = createTurn(kind, 1)
    const ids = Array.from(turn.completionTokenIds)
    // The least probable token replaces it.
    const logprobs = POLICY.next([...Array.from(turn.promptTokenIds), ...ids.slice(0, 20)])
    ids[20] = logprobs.indexOf(Math.min(...logprobs))
    const found = await findFault(t, kind, { ...turn, completionTokenIds: ids })
    t.match(found.first_difference, { index: 20, token_id: ids[20] })
    t.match(found.hint, /a few tokens differ/)
  })

  t.test(`${kind}: logprobs of another temperature are detected`, async (t) => {
    const { scaled } = POLICY.sample([4, 2, 5, 2, 6, 10, 3, 7], LENGTH, {
      temperature: 0.6,
      random: createRandom(101),
    })
    const turn = createTurn(kind, 1, { temperature: 0.6 })
    const recorded = kind === 'vllm' ? scaled : turn.completionLogprobs
    // The recorded temperature is 1, or the logprobs are raw as vLLM's are.
    await findFault(t, kind, { ...turn, params: { temperature: 1 }, completionLogprobs: recorded })
  })

  t.test(`${kind}: logprobs over an unrecorded mask are detected and identified`, async (t) => {
    const turn = createTurn(kind, 1, { topP: 0.6 })
    const { filtered } = POLICY.sample(Array.from(turn.promptTokenIds), LENGTH, {
      topP: 0.6,
      random: createRandom(101),
    })
    const { hint, comparison } = await findFault(t, kind, { ...turn, completionLogprobs: filtered })
    t.match(hint, /computed after top_p, top_k or min_p/)
    t.ok(comparison!.ratio.p50 < 0.9, 'the values that the trainer would have divided by')
  })

  t.test(`${kind}: logprobs over recorded masks pass at any temperature`, async (t) => {
    const { engine } = await setUp(t, kind)
    const turns = [1, 0.7, 1.3].map((temperature, index) => createMaskedTurn(kind, index, temperature))
    const { run, results } = await verifyAll(engine, turns)
    t.equal(run.verdict, 'same')
    for (const { masked } of results) t.match(masked, { tokens: LENGTH })
    t.ok(results.every(({ masked }) => masked!.max_difference < 1e-9))
    // An engine that reports no other logprobs.
    const processed = turns.map((turn) => {
      const { samplingLogprobs, ...rest } = turn
      return { ...rest, completionLogprobs: samplingLogprobs as number[] }
    })
    t.equal((await verifyAll(engine, processed, { logprobsKind: 'mask' })).run.verdict, 'same')
  })

  t.test(`${kind}: a missing mask and a wrong one are detected and identified`, async (t) => {
    const turn = createMaskedTurn(kind, 1)
    const masks = turn.samplingMask as number[][]
    const few = masks.flatMap((mask, index) => (mask.length > 1 ? [index] : [])).slice(0, LENGTH / 2)
    const without = masks.map((mask, index) => (few.includes(index) ? null : mask))
    const narrower = masks.map((mask, index) =>
      few.includes(index) ? mask.filter((id) => id === turn.completionTokenIds[index]) : mask,
    )
    for (const samplingMask of [without, narrower]) {
      const { hint, comparison } = await findFault(t, kind, { ...turn, samplingMask })
      t.match(hint, /a mask is missing or wrong/)
      t.ok(comparison!.max_difference < 1e-9, 'the other logprobs are correct')
    }
  })

  t.test(`${kind}: another adapter than the requested one is detected`, async (t) => {
    const [critic, base] = [new TableModel(2), POLICY]
    // It was sampled by the base model under the adapter's name.
    const turn = {
      ...createTurn(kind, 1, { model: base }),
      model: 'critic',
      params: { temperature: 1, lora_path: 'critic' },
    }
    await findFault(t, kind, turn, { policy: POLICY, critic })
    // The adapter's own samples pass.
    const { engine } = await setUp(t, kind, { policy: POLICY, critic })
    const right = {
      ...createTurn(kind, 1, { model: critic }),
      model: 'critic',
      params: { temperature: 1, lora_path: 'critic' },
    }
    t.equal((await verifyAll(engine, [right])).run.verdict, 'same')
  })

  t.test(`${kind}: stale weights under the name of the new ones are detected`, async (t) => {
    await findFault(t, kind, createTurn(kind, 1, { model: new TableModel(9) }))
  })

  t.test(`${kind}: a template with one more space is detected, at the beginning`, async (t) => {
    const space = 33
    const prompt = [3, 1, 4, 1, 5, 9, 2, 6].map((id) => id + 1)
    const { first_difference: first, hint } = await findFault(
      t,
      kind,
      createTurn(kind, 1, { seen: [...prompt, space] }),
    )
    t.equal(first?.index, 0)
    t.equal(hint, 'only the beginning differs: the prompt was different')
  })

  t.test(`${kind}: text that was tokenized again is detected`, async (t) => {
    const turn = createTurn(kind, 1)
    const ids = Array.from(turn.completionTokenIds)
    // The same text in other tokens at some positions: as many, so that the counts agree.
    for (const index of [10, 30, 50]) {
      const [first, second] = [ids[index]!, ids[index + 1]!]
      ids[index] = (first + 13) % 40
      ids[index + 1] = (second + 27) % 40
    }
    await findFault(t, kind, { ...turn, completionTokenIds: ids })
  })

  t.test(`${kind}: an engine that ignores the prompt cannot verify`, async (t) => {
    const insensitive = new TableModel(1)
    insensitive.next = () => Array.from({ length: 40 }, () => -Math.log(40))
    const { engine } = await setUp(t, kind, { policy: insensitive })
    const turn = { ...createTurn(kind, 0), completionLogprobs: Array(LENGTH).fill(-Math.log(40)) }
    const { run } = await verifyAll(engine, [turn])
    t.match(run, { verdict: 'void', compared: 1, differing: 0, control: { caught: false, turns: 1 } })
  })

  t.test(
    `${kind}: turns that cannot be compared are counted by reason, and without comparisons nothing is proved`,
    async (t) => {
      const { engine } = await setUp(t, kind)
      const turn = createTurn(kind, 0)
      const { run } = await verifyAll(engine, [
        { ...turn, status: 'aborted' },
        { ...turn, exact: false },
        { ...turn, completionTokenIds: [], completionLogprobs: [] },
        { ...turn, weightVersionStart: '0', weightVersionEnd: '0' },
        { ...turn, weightVersionStart: '0', weightVersionEnd: '1' },
        { ...turn, model: 'unknown' },
      ])
      t.match(run, { verdict: 'void', compared: 0, overall: null })
      t.same(run.skipped, {
        not_completed: 1,
        inexact: 1,
        empty: 1,
        other_weights: 1,
        changed_weights: 1,
        other_model: 1,
      })
      const any = await verifyAll(engine, [{ ...turn, weightVersionStart: '0', weightVersionEnd: '0' }], {
        anyWeights: true,
      })
      t.equal(any.run.compared, 1)
    },
  )

  t.test(`${kind}: a response without every token is an error, never a zero`, async (t) => {
    const { engine, server } = await setUp(t, kind)
    const { signal } = new AbortController()
    const verifier = new Verifier(engine, { models: [] })
    const turn = createTurn(kind, 0)
    server.state.models = { policy: Object.assign(new TableModel(1), { next: () => [] }) }
    const verified = await verifier.verify(turn, signal).catch((error) => error)
    // SGLang reports null for unknown values, and vLLM for minus infinity.
    if (kind === 'sglang') t.match(verified, { code: 'engine_failed' })
    else t.equal(verified.result.verdict, 'differs')
  })
}

t.test('a temperature that the request does not set is the recorded default of the engine', async (t) => {
  const { engine } = await setUp(t, 'sglang')
  const turn = { ...createTurn('sglang', 1, { temperature: 0.6 }), params: {} }
  const { run } = await verifyAll(engine, [{ ...turn, defaults: { temperature: 0.6 } }, turn])
  t.match(run, { verdict: 'same', compared: 1, skipped: { unknown_temperature: 1 } })
})

t.test('an unknown temperature leaves out only the comparisons that depend on it', async (t) => {
  const { engine } = await setUp(t, 'vllm')
  const turn = { ...createMaskedTurn('vllm', 1, 0.6), params: { top_p: 0.6 } }
  const { results } = await verifyAll(engine, [{ ...turn, defaults: { temperature: 0.6 } }, turn])
  t.match(results, [
    { verdict: 'same', masked: { tokens: LENGTH } },
    { verdict: 'same', masked: undefined },
  ])
})

t.test('an engine that cannot score is rejected with its name', async (t) => {
  const engine = CLIENT_OF_KIND.openai({ url: 'http://127.0.0.1:1' })
  t.teardown(() => engine.close())
  t.throws(() => new Verifier(engine, { models: [] }), {
    code: 'unsupported',
    message: /cannot score tokens/,
  })
})

t.test("the request has the engine's own fields", async (t) => {
  const createRequest = async (kind: Kind, temperature: number) => {
    const { engine, server } = await setUp(t, kind)
    const verifier = new Verifier(engine, { models: [] })
    await verifier.verify(createTurn(kind, 0, { temperature }), new AbortController().signal)
    return (server as ScoringEngine).requests.at(-1)!
  }
  const turn = createTurn('vllm', 0)
  t.match(await createRequest('vllm', 0.5), {
    path: '/v1/completions',
    body: {
      model: 'policy',
      prompt: [
        ...Array.from(turn.promptTokenIds),
        ...Array.from(createTurn('vllm', 0, { temperature: 0.5 }).completionTokenIds),
      ],
      max_tokens: 1,
      prompt_logprobs: 0,
      add_special_tokens: false,
      stream: false,
    },
  })
  t.match(await createRequest('sglang', 0.5), {
    path: '/generate',
    body: {
      return_logprob: true,
      logprob_start_len: 7,
      top_logprobs_num: 20,
      sampling_params: { max_new_tokens: 0 },
      stream: false,
    },
  })
})
