import t from 'tap'
import { MessageTree } from '../../../src/canonical/conversation.ts'

t.test('what is noted of a message takes no more room when there were many trees before', async (t) => {
  const noted = () => {
    const tree = new MessageTree()
    const last = tree.lastOf([
      { role: 'user', content: 'a' },
      { role: 'user', content: 'b' },
    ])!
    tree.jsonUpTo(last)
    return last.notes.length
  }
  const first = noted()
  for (let trees = 0; trees < 100; trees += 1) new MessageTree()
  t.equal(noted(), first)
})

t.test('text beyond Latin-1 counts as the two bytes a letter that it takes', async (t) => {
  const bytesOf = (content: string) => {
    const tree = new MessageTree()
    tree.lastOf([{ role: 'user', content }])
    return tree.bytes
  }
  t.equal(bytesOf('字'.repeat(10_000)) - bytesOf('字'.repeat(5_000)), 10_000)
  t.equal(bytesOf('a'.repeat(10_000)) - bytesOf('a'.repeat(5_000)), 5_000)
})
