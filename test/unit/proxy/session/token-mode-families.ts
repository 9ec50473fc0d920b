/**
 * Token mode with the tokenizers and templates of real models: exactly the sampled tokens are trained, on
 * every turn. `npm test` covers some of them, `npm run test:slow` the others.
 */

import assert from 'node:assert/strict'
import fc from 'fast-check'
import type { Test } from 'tap'
import { getTextsUpTo } from '../../../../src/protocol/canonical/conversation.ts'
import {
  type Trajectory,
  TrajectoryBuilder,
} from '../../../../src/proxy/session/trajectories/trajectories.ts'
import type { TurnRecord } from '../../../../src/proxy/store/port/turn-store.ts'
import type { TokenModel } from '../../../../src/proxy/tokens/model/token-model.ts'
import { IS_FULL } from '../../../helpers/tier.ts'
import type { Model } from '../tokens/prompt-rollout.ts'
import { PLAIN_TALK, plannedTalks } from './token-mode-samples.ts'
import { loadTokenModel, Talk } from './token-mode-talk.ts'

export const FAMILIES = ['qwen2_5', 'qwen3', 'llama3_1', 'llama3_2', 'deepseek_v3', 'gemma3', 'embedded']
/** Their templates support no tools. */
const WITHOUT_TOOLS = ['gemma3']
const RUNS = IS_FULL ? 40 : 15

export function testTokenMode(t: Test, name: string): void {
  t.test(name, async (t) => {
    const model = loadTokenModel(name)

    await t.test(
      'no sampled token is lost, for any output of the model and any changes by the client',
      async (t) => {
        const counts = { extended: 0, ambiguous: 0, cut: 0, calls: 0 }
        await fc.assert(
          fc.asyncProperty(plannedTalks(!WITHOUT_TOOLS.includes(name)), async (plan) => {
            const talk = await Talk.open(model, plan)
            const { turns, continued } = await talk.play()
            for (const [i, turn] of turns.entries()) {
              checkRecord(turn, talk.sampled[i]!)
              counts.cut += Number(turn.finishReason === 'length')
              counts.calls += Number(turn.finishReason === 'tool_calls')
              const wanted = continued[i]
              if (wanted === undefined) continue
              const parent = getParent(turn, turns)
              counts.extended += 1
              counts.ambiguous += Number(parent.index !== wanted)
              checkSameResponse(parent, turns[wanted]!)
              await checkPrompt(model, turn, parent)
            }
            checkRows(turns, talk.sampled)
          }),
          { numRuns: RUNS },
        )
        t.ok(counts.extended > RUNS, `${counts.extended} turns continued another`)
        t.ok(counts.cut > RUNS / 10, `${counts.cut} completions were cut off`)
        t.equal(counts.calls > 0, !WITHOUT_TOOLS.includes(name), `${counts.calls} completions made calls`)
        t.ok(counts.ambiguous < counts.extended / 10, `${counts.ambiguous} continued a look-alike`)
      },
    )

    await t.test(
      'prompts are complete renders where a template never changes earlier messages',
      async (t) => {
        const { turns } = await (await Talk.open(model, PLAIN_TALK)).play()
        t.equal(turns.length, PLAIN_TALK.turns.length)
        for (const turn of turns) t.same([...turn.promptTokenIds], (await renderedIds(model, turn))!)
      },
    )
  })
}

function checkRecord(turn: TurnRecord, sampled: number[]): void {
  assert.equal(turn.status, 'completed')
  assert.equal(turn.exact, true, turn.inexactReason ?? '')
  assert.deepEqual([...turn.completionTokenIds], sampled)
  assert.equal(JSON.parse(turn.annotations).prompt.mismatched, false)
}

function getParent(turn: TurnRecord, turns: TurnRecord[]): TurnRecord {
  const getPrompt = ({ annotations }: TurnRecord) => JSON.parse(annotations).prompt
  const { reason, from } = getPrompt(turn)
  const isContinued = turns.some((other) => other.index < turn.index && getPrompt(other).from === from)
  assert.equal(reason, isContinued ? 'forked' : 'extended')
  return turns.find(({ turnId }) => turnId === from)!
}

/** Two completions of one prompt that differ only in parts that clients change may be interchanged. */
function checkSameResponse(parent: TurnRecord, wanted: TurnRecord): void {
  if (parent === wanted) return
  assert.deepEqual(getTextsUpTo(parent.lastMessage), getTextsUpTo(wanted.lastMessage))
  assert.equal(parent.completionText?.trim() ?? '', wanted.completionText?.trim() ?? '')
}

async function checkPrompt(model: TokenModel & Model, turn: TurnRecord, parent: TurnRecord): Promise<void> {
  const past = getLine(parent)
  const prompt = [...turn.promptTokenIds]
  assert.deepEqual(prompt.slice(0, past.length), past)
  const { end } = model
  const endsTurn = model.eosTokenIds.includes(past.at(-1)!)
  const reasoningEnd = endsTurn ? [] : model.tokenizer.encode(missingEndOfReasoning(model, parent))
  const glueIds = [...reasoningEnd, ...(endsTurn || past.at(-1) === end.id ? [] : [end.id])]
  const newPart = prompt.slice(past.length)
  assert.deepEqual(newPart.slice(0, glueIds.length), glueIds)
  const full = await renderedIds(model, turn)
  if (full === undefined) return
  const newIds = newPart.slice(glueIds.length)
  assert.deepEqual(newIds, full.slice(full.length - newIds.length), 'the new part is that of the full render')
  // The history alone is insufficient: a truncated character may begin with the bytes of the replacement
  // character in its text.
  if ([...past, ...glueIds].every((id, i) => id === full[i])) assert.deepEqual(prompt, full)
}

/**
 * The text with which Qwen3's template ends reasoning; the other templates render none, and `</think>` ends
 * it.
 */
function missingEndOfReasoning(
  { parser, source, tokenizer }: TokenModel & Model,
  parent: TurnRecord,
): string {
  if (parser.reasoning === undefined) return ''
  const text = tokenizer.decode(parent.completionTokenIds)
  const head = tokenizer.decode(parent.promptTokenIds).trimEnd()
  const opened = Math.max(text.lastIndexOf('<think>'), head.endsWith('<think>') ? 0 : -1)
  if (opened === -1 || text.lastIndexOf('</think>') > opened || text.includes('</think>', opened)) return ''
  if (!source.includes('reasoning_content')) return '</think>'
  return text.endsWith('\n') ? '</think>\n\n' : '\n</think>\n\n'
}

/**
 * Returns undefined if the template rejects the agent's messages: Llama's accepts one tool call per message.
 */
async function renderedIds({ renderer }: TokenModel, turn: TurnRecord): Promise<number[] | undefined> {
  const messages = getTextsUpTo(turn.lastMessage).map((message) => JSON.parse(message))
  const tools = turn.tools === null ? null : JSON.parse(turn.tools)
  return await renderer.renderFull(messages, { tools }).then(
    ({ ids }) => [...ids],
    () => undefined,
  )
}

function checkRows(turns: TurnRecord[], sampled: number[][]): void {
  const builder = new TrajectoryBuilder()
  for (const turn of turns) builder.add(turn)
  const rows = [...builder.assembleRows({}, null)]
  for (const row of rows) {
    const last = turns.find(({ turnId }) => turnId === row.turns.at(-1)!.turn_id)!
    assert.deepEqual([...row.prompt_ids, ...row.response_ids], getLine(last))
    assert.equal(row.exact, true)
    checkMask(row)
  }
  const trained = rows.reduce((sum, row) => sum + row.response_mask.filter((bit) => bit === 1).length, 0)
  assert.equal(trained, sampled.flat().length)
}

/** 1 on the completions that the row trains, 0 on all between them. */
function checkMask({ response_mask, response_logprobs, turns }: Trajectory): void {
  const expected = new Uint8Array(response_mask.length)
  for (const { start, end, trained } of turns) expected.fill(Number(trained), start, end)
  assert.deepEqual(response_mask, expected)
  assert.ok(response_logprobs.every((logprob, i) => (logprob === 0) === (expected[i] === 0)))
}

function getLine({ promptTokenIds, completionTokenIds }: TurnRecord): number[] {
  return [...promptTokenIds, ...completionTokenIds]
}
