/** The messages of a session as a tree: which messages share a node. */
import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { computeMessageKey } from '../../../../../src/proxy/session/matching/message-key.ts'
import { MessageNode } from '../../../../../src/proxy/session/matching/message-tree.ts'

type CompletionFields = Partial<Omit<ChatMessage, 'role'>> & { content: string }
const getCompletionKey = (fields: CompletionFields) =>
  computeMessageKey({ role: 'assistant', ...fields } as ChatMessage)
const never = () => {
  throw new Error('nothing forks')
}

t.test('equal messages after the same message have one node', async (t) => {
  const root = MessageNode.root()
  for (const key of [
    computeMessageKey({ role: 'user', content: 'hi' }),
    getCompletionKey({ content: 'The sea' }),
  ]) {
    const node = root.descend(key, never)
    t.equal(root.descend(key, never), node)
    t.equal(node.descend(key, never), node.descend(key, never))
    t.not(node.descend(key, never), node, 'after another message they have another node')
  }
})

t.test('completions that differ in parts that an echo may omit have their own nodes', async (t) => {
  const root = MessageNode.root()
  let forks = 0
  const fork = () => {
    forks += 1
  }
  const variants = [
    { content: 'The sea' },
    { content: 'The sea', reasoning_content: 'Deep' },
    { content: 'The sea', reasoning_content: 'Salt' },
    { content: ' The sea\n' },
  ]
  const nodes = variants.map((each) => root.descend(getCompletionKey(each), fork))
  t.equal(new Set(nodes).size, variants.length)
  t.equal(forks, variants.length - 1)
  for (const [index, each] of variants.entries())
    t.equal(root.descend(getCompletionKey(each), never), nodes[index])
  t.same(
    root.listEchoCandidates(getCompletionKey({ content: 'The sea' })).map((node) => nodes.indexOf(node)),
    [0, 1, 2, 3],
    'the plain one may be an echo of each',
  )
  t.same(
    root
      .listEchoCandidates(getCompletionKey({ content: 'The sea', reasoning_content: 'Salt' }))
      .map((node) => nodes.indexOf(node)),
    [2],
  )
})
