import t from 'tap'
import { joinIds } from '../../../../../src/proxy/tokens/prompt/prompt-renderer.ts'
import type { Tokenizer } from '../../../../../src/proxy/tokens/tokenizer/tokenizer.ts'

const [CALL_END, TURN_END, NEXT] = [40, 50, 60]
const tokenizer = { isAdded: (id: number) => id !== NEXT } as Tokenizer

/** Joins a completion and the next message for a template whose turns end with two special tokens. */
function joinAfter(lastId: number | undefined, endedItself = false) {
  const bridge = { endId: TURN_END, closingIds: [CALL_END, TURN_END] }
  return joinIds([TURN_END, NEXT], bridge, { lastId, endedItself }, tokenizer)
}

/** Creates the result of {@link joinAfter} for a completion that keeps all its tokens. */
const createBridge = (bridgeIds: number[]) => ({ replacedTokens: 0, bridgeIds, newIds: [NEXT] })

t.test('a truncated completion gets the missing tokens of its end, and none twice', async (t) => {
  t.same(joinAfter(7), createBridge([CALL_END, TURN_END]))
  t.same(joinAfter(undefined), createBridge([CALL_END, TURN_END]))
  t.same(joinAfter(CALL_END), createBridge([TURN_END]))
  t.same(joinAfter(TURN_END), createBridge([]))
  t.same(joinAfter(CALL_END, true), createBridge([]), 'the engine reported its end')
})

t.test('the token that opens the next message replaces another end of turn', async (t) => {
  const join = (lastId: number | undefined, endedItself: boolean) =>
    joinIds([TURN_END, NEXT], { endId: undefined, closingIds: [] }, { lastId, endedItself }, tokenizer)
  const full = { bridgeIds: [], newIds: [TURN_END, NEXT] }
  t.same(join(TURN_END, true), { replacedTokens: 0, bridgeIds: [], newIds: [NEXT] }, 'the same token')
  t.same(join(CALL_END, true), { replacedTokens: 1, ...full }, 'another one')
  t.same(join(7, false), { replacedTokens: 0, ...full }, 'a truncated completion')
  t.same(join(undefined, false), { replacedTokens: 0, ...full }, 'an empty completion')
})
