import t from 'tap'
import { joinIds } from '../../../../src/proxy/tokens/prompt/prompt-renderer.ts'
import type { Tokenizer } from '../../../../src/proxy/tokens/tokenizer/tokenizer.ts'

const [CALL_END, TURN_END, NEXT] = [40, 50, 60]
const tokenizer = { isAdded: (id: number) => id !== NEXT } as Tokenizer

/** The bridge between a completion and the next message, where a turn ends with two special tokens. */
function glueBehind(lastId: number | undefined, endedItself = false) {
  const closing = { endId: TURN_END, closingIds: [CALL_END, TURN_END] }
  return joinIds([TURN_END, NEXT], closing, { lastId, endedItself }, tokenizer)
}

/** As in {@link glueBehind}, where the completion loses no token. */
const glue = (bridgeIds: number[]) => ({ replacedTokens: 0, bridgeIds, newIds: [NEXT] })

t.test('a truncated completion gets the missing tokens of its end, and none twice', async (t) => {
  t.same(glueBehind(7), glue([CALL_END, TURN_END]))
  t.same(glueBehind(undefined), glue([CALL_END, TURN_END]))
  t.same(glueBehind(CALL_END), glue([TURN_END]))
  t.same(glueBehind(TURN_END), glue([]))
  t.same(glueBehind(CALL_END, true), glue([]), 'it ended for the engine')
})

t.test('the token that opens the next message replaces another end of turn', async (t) => {
  const behind = (lastId: number | undefined, endedItself: boolean) =>
    joinIds([TURN_END, NEXT], { endId: undefined, closingIds: [] }, { lastId, endedItself }, tokenizer)
  const full = { bridgeIds: [], newIds: [TURN_END, NEXT] }
  t.same(behind(TURN_END, true), { replacedTokens: 0, bridgeIds: [], newIds: [NEXT] }, 'the same token')
  t.same(behind(CALL_END, true), { replacedTokens: 1, ...full }, 'another one')
  t.same(behind(7, false), { replacedTokens: 0, ...full }, 'a truncated completion')
  t.same(behind(undefined, false), { replacedTokens: 0, ...full }, 'an empty completion')
})
