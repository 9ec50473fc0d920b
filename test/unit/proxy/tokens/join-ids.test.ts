import t from 'tap'
import { joinIds } from '../../../../src/proxy/tokens/prompt/prompt-renderer.ts'
import type { Tokenizer } from '../../../../src/proxy/tokens/tokenizer/tokenizer.ts'

const [CALL_END, TURN_END, NEXT] = [40, 50, 60]
const tokenizer = { isAdded: (id: number) => id !== NEXT } as Tokenizer

/** Ids between a completion and the next message, where a turn ends with two special tokens. */
function glueBehind(lastId: number | undefined, endedItself = false) {
  const closing = { endId: TURN_END, closingIds: [CALL_END, TURN_END] }
  return joinIds([TURN_END, NEXT], closing, { lastId, endedItself }, tokenizer)
}

t.test('a completion that was cut off gets what it lacks of its end, and nothing twice', async (t) => {
  t.same(glueBehind(7), { glueIds: [CALL_END, TURN_END], newIds: [NEXT] })
  t.same(glueBehind(undefined), { glueIds: [CALL_END, TURN_END], newIds: [NEXT] })
  t.same(glueBehind(CALL_END), { glueIds: [TURN_END], newIds: [NEXT] })
  t.same(glueBehind(TURN_END), { glueIds: [], newIds: [NEXT] })
  t.same(glueBehind(CALL_END, true), { glueIds: [], newIds: [NEXT] }, 'it ended for the engine')
})
