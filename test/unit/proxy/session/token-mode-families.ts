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
import { ConversationPlayer, loadTokenModel } from './conversation-player.ts'
import { PLAIN_CONVERSATION, planConversations } from './token-mode-samples.ts'

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
          fc.asyncProperty(planConversations(!WITHOUT_TOOLS.includes(name)), async (plan) => {
            const player = await ConversationPlayer.open(model, plan)
            const { turns, continued } = await player.play()
            for (const [i, turn] of turns.entries()) {
              checkRecord(turn, player.sampled[i]!)
              counts.cut += Number(turn.finishReason === 'length')
              counts.calls += Number(turn.finishReason === 'tool_calls')
              const expected = continued[i]
              if (expected === undefined) continue
              const parent = getParent(turn, turns)
              counts.extended += 1
              counts.ambiguous += Number(parent.index !== expected)
              checkSameResponse(parent, turns[expected]!)
              await checkPrompt(model, turn, parent)
            }
            checkRows(turns, player.sampled)
          }),
          { numRuns: RUNS },
        )
        t.ok(counts.extended > RUNS, `${counts.extended} turns continued another`)
        t.ok(counts.cut > RUNS / 10, `${counts.cut} completions were cut off`)
        t.equal(counts.calls > 0, !WITHOUT_TOOLS.includes(name), `${counts.calls} completions made calls`)
        t.ok(counts.ambiguous < counts.extended / 10, `${counts.ambiguous} continued a turn with equal text`)
      },
    )

    await t.test(
      'prompts are complete renders where a template never changes earlier messages',
      async (t) => {
        const { turns } = await (await ConversationPlayer.open(model, PLAIN_CONVERSATION)).play()
        t.equal(turns.length, PLAIN_CONVERSATION.turns.length)
        for (const turn of turns) t.same([...turn.promptTokenIds], (await renderIds(model, turn))!)
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
function checkSameResponse(parent: TurnRecord, expected: TurnRecord): void {
  if (parent === expected) return
  assert.deepEqual(getTextsUpTo(parent.lastMessage), getTextsUpTo(expected.lastMessage))
  assert.equal(parent.completionText?.trim() ?? '', expected.completionText?.trim() ?? '')
}

async function checkPrompt(model: TokenModel & Model, turn: TurnRecord, parent: TurnRecord): Promise<void> {
  const history = getTokens(parent)
  const prompt = [...turn.promptTokenIds]
  assert.deepEqual(prompt.slice(0, history.length), history)
  const { end } = model
  const endsTurn = model.eosTokenIds.includes(history.at(-1)!)
  const reasoningEnd = endsTurn ? [] : model.tokenizer.encode(getMissingReasoningEnd(model, parent))
  const bridgeIds = [...reasoningEnd, ...(endsTurn || history.at(-1) === end.id ? [] : [end.id])]
  const newPart = prompt.slice(history.length)
  assert.deepEqual(newPart.slice(0, bridgeIds.length), bridgeIds)
  const full = await renderIds(model, turn)
  if (full === undefined) return
  const newIds = newPart.slice(bridgeIds.length)
  assert.deepEqual(newIds, full.slice(full.length - newIds.length), 'the new part is that of the full render')
  // The history alone is insufficient: a truncated character may begin with the bytes of the replacement
  // character in its text.
  if ([...history, ...bridgeIds].every((id, i) => id === full[i])) assert.deepEqual(prompt, full)
}

/**
 * Returns the text with which Qwen3's template ends reasoning. The other templates render no reasoning, and
 * `</think>` ends it.
 */
function getMissingReasoningEnd(
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
 * Returns the complete render, or undefined if the template rejects the messages: Llama's accepts one tool
 * call per message.
 */
async function renderIds({ renderer }: TokenModel, turn: TurnRecord): Promise<number[] | undefined> {
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
    assert.deepEqual([...row.prompt_ids, ...row.response_ids], getTokens(last))
    assert.equal(row.exact, true)
    checkMask(row)
  }
  const trained = rows.reduce((sum, row) => sum + row.response_mask.filter((bit) => bit === 1).length, 0)
  assert.equal(trained, sampled.flat().length)
}

/** Asserts that the mask is 1 on the completions that the row trains, and 0 elsewhere. */
function checkMask({ response_mask, response_logprobs, turns }: Trajectory): void {
  const expected = new Uint8Array(response_mask.length)
  for (const { start, end, trained } of turns) expected.fill(Number(trained), start, end)
  assert.deepEqual(response_mask, expected)
  assert.ok(response_logprobs.every((logprob, i) => (logprob === 0) === (expected[i] === 0)))
}

function getTokens({ promptTokenIds, completionTokenIds }: TurnRecord): number[] {
  return [...promptTokenIds, ...completionTokenIds]
}
