/** Finds the turn that a call continues: the tree of turns of one session, judged by their messages. */
import { SideTable } from '../../../base/side-table.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { EditedCalls } from '../../store/port/turn-store.ts'
import { type ConversationKeys, getMessageKey } from './conversation.ts'
import type { MessageKey } from './message-key.ts'
import { messageKey, readWording } from './message-key.ts'
import { MessageNode } from './message-tree.ts'

/** A completed turn in the tree. `turn` is the caller's own. */
export interface IndexTurn<Turn> {
  readonly turn: Turn
  /** In call order: the greater the later. */
  readonly order: number
  /** How many messages there are up to its answer. */
  readonly depth: number
  readonly parent: IndexTurn<Turn> | undefined
  readonly request: Node<Turn>
  readonly completion: Node<Turn>
  continuations: readonly IndexTurn<Turn>[]
}

/** A call and the turn that it continues. */
export interface PrefixMatch<Turn> {
  /** undefined: the call begins a branch of its own. */
  readonly parent: IndexTurn<Turn> | undefined
  /** Another call had continued the parent by then: they are two branches from there on. */
  readonly isFork: boolean
  /** How many of the call's messages are the parent's, its completion included; 0 without a parent. */
  readonly sharedMessages: number
  /** The turn whose calls a message behind those has, but edited: there a branch begins. */
  readonly edited: IndexTurn<Turn> | undefined
  readonly order: number
  readonly conversation: ConversationKeys
}

/** What a turn was answered with. */
export type SampledMessage = Pick<Completion, 'content' | 'reasoning' | 'toolCalls'>

type Node<Turn> = MessageNode<IndexTurn<Turn>>

/** A way through the tree that the messages of a call may be an echo of. */
interface EchoPath<Turn> {
  readonly node: Node<Turn>
  /** How well the echo keeps the wording; means something only against the other paths of the same call. */
  readonly likeness: number
}

const NONE: readonly never[] = []

/** Where a call passed a turn that it may continue. */
interface Passage<Turn> {
  /** The turn's last; undefined: before all messages. */
  readonly message: Message | undefined
  readonly paths: readonly EchoPath<Turn>[]
}

/**
 * The one way on which an index leads to a message. It hangs on the message, so that the calls of each conversation
 * that a session has begin where the call before passed its parent.
 */
interface Way {
  readonly index: object
  readonly toolsKey: string
  /** Of the index: how often it had forked by then. */
  readonly forkCount: number
  readonly node: unknown
}

const ways = new SideTable<Message, Way>()

/**
 * A call's parent is the deepest completed turn whose messages and completion it extends, under the same tools.
 * Turns in flight are nobody's parent, so that a call may be matched while others run.
 *
 * - An answer's message is found by its calls, where the proxy drew their ids; all others by what they say.
 * - Of several parents that are equally deep, the one whose wording the echo keeps best.
 * - Of parents that are worded alike, the one that a call with these very messages has continued before (this is a
 *   retry), or the latest one that nothing continues, or the latest of all: as trajectories have it.
 *
 * A call is one walk: per message one look-up for each recorded message that it may be an echo of. That is one, unless
 * one prompt was sampled several times with answers that differ in nothing but what clients tidy. A call that goes on
 * from an earlier one begins where that one passed its parent, as long as there is one way to there.
 *
 * `Turn` is what the caller keeps of a turn. An index is forgotten by letting go of it.
 */
export class PrefixIndex<Turn> {
  /** By the tools that the turns were sampled under. */
  readonly #roots = new Map<string, Node<Turn>>()
  /** How often there came to be two ways where there was one. */
  #forkCount = 0
  #callCount = 0
  readonly #editedCalls: EditedCalls

  /** @param editedCalls what becomes of an answer's calls that come back otherwise than they were sampled */
  constructor(editedCalls: EditedCalls = 'auto') {
    this.#editedCalls = editedCalls
  }

  /** Changes nothing but the count of calls: the same call finds the same parent, unless a turn was added since. */
  match(conversation: ConversationKeys): PrefixMatch<Turn> {
    const order = this.#callCount++
    const { toolsKey, last } = conversation
    let passed = this.#findPassage(conversation)
    let { paths } = passed
    let isOneWay = paths.length === 1
    let edited: IndexTurn<Turn> | undefined
    for (const message of getMessagesBetween(passed.message, last)) {
      if (paths.length === 0) break
      const key = getMessageKey(message)
      edited ??= this.#editedBy(paths, key)
      paths = this.#follow(paths, key)
      isOneWay &&= paths.length < 2
      if (!paths.some(isAnswered)) continue
      passed = { message, paths }
      edited = undefined
    }
    if (isOneWay) this.#remember(passed, toolsKey)
    const parent = choose(selectMostAlike(passed.paths.filter(isAnswered)), paths)
    const isFork = parent !== undefined && parent.continuations.length > 0
    return { parent, isFork, sharedMessages: passed.message?.depth ?? 0, edited, order, conversation }
  }

  /** A call on record, whose parent was found when it was live. */
  continuing(parent: IndexTurn<Turn> | undefined, conversation: ConversationKeys): PrefixMatch<Turn> {
    const order = this.#callCount++
    const sharedMessages = parent?.depth ?? 0
    return { parent, isFork: false, sharedMessages, edited: undefined, order, conversation }
  }

  /**
   * A call has been answered. From now on it can be continued, even if its answer did not reach the agent: a retry may
   * be given it.
   */
  add(call: PrefixMatch<Turn>, completion: SampledMessage, turn: Turn): IndexTurn<Turn> {
    const { parent, sharedMessages, order, conversation } = call
    let request = parent?.completion ?? this.#getRoot(conversation.toolsKey)
    // From the parent on: what the call says of older messages is an echo, and what was sampled stays.
    const isShared = ({ depth }: Message) => depth <= sharedMessages
    for (const message of getMessagesBetween(undefined, conversation.last, isShared)) {
      request = request.descend(getMessageKey(message), this.#forked)
    }
    const said = messageKey(sampledMessage(completion))
    const node = request.descend(said, this.#forked)
    const added: IndexTurn<Turn> = {
      turn,
      order,
      depth: (conversation.last?.depth ?? 0) + 1,
      parent,
      request,
      completion: node,
      continuations: NONE,
    }
    node.addAnswer(added)
    request.noteCalls(said, node)
    if (parent) parent.continuations = parent.continuations.concat(added)
    return added
  }

  readonly #forked = (): void => {
    this.#forkCount += 1
  }

  /** The latest one on the call's way that is known, or the root. */
  #findPassage({ toolsKey, last }: ConversationKeys): Passage<Turn> {
    for (let message = last; message !== undefined; message = message.parent) {
      const way = ways.of(message)
      if (way?.index !== this || way.toolsKey !== toolsKey || way.forkCount !== this.#forkCount) continue
      return { message, paths: [{ node: way.node as Node<Turn>, likeness: 0 }] }
    }
    const root = this.#roots.get(toolsKey)
    return { message: undefined, paths: root === undefined ? [] : [{ node: root, likeness: 0 }] }
  }

  /** One message further on every path, where it leads on. */
  #follow(paths: readonly EchoPath<Turn>[], key: MessageKey): EchoPath<Turn>[] {
    const next = paths.flatMap(({ node, likeness }) =>
      this.#echoedBy(node, key).map((echoed) => ({ node: echoed, likeness })),
    )
    const said = key.assistant
    if (next.length < 2 || said === undefined) return next
    const wording = readWording(said)
    return next.map(({ node, likeness }) => ({
      node,
      likeness: likeness + node.likenessTo(wording, said.reasoning),
    }))
  }

  /** Its calls name an answer; a message without such calls, or with calls that were edited, is what it says. */
  #echoedBy(node: Node<Turn>, key: MessageKey): readonly Node<Turn>[] {
    const answer = node.calledBy(key)
    return answer?.isKeptBy(key, this.#editedCalls) ? [answer] : node.echoedBy(key)
  }

  #editedBy(paths: readonly EchoPath<Turn>[], key: MessageKey): IndexTurn<Turn> | undefined {
    if (key.assistant?.drawnCalls === undefined) return undefined
    const answers = paths.flatMap(({ node }) => node.calledBy(key) ?? [])
    return answers.find((answer) => !answer.isKeptBy(key, this.#editedCalls))?.answers[0]
  }

  #remember({ message, paths: [path] }: Passage<Turn>, toolsKey: string): void {
    if (message === undefined || path === undefined) return
    ways.put(message, { index: this, toolsKey, forkCount: this.#forkCount, node: path.node })
  }

  #getRoot(toolsKey: string): Node<Turn> {
    const root: Node<Turn> = this.#roots.get(toolsKey) ?? MessageNode.root()
    this.#roots.set(toolsKey, root)
    return root
  }
}

function isAnswered<Turn>({ node }: EchoPath<Turn>): boolean {
  return node.answers.length > 0
}

function selectMostAlike<Turn>(paths: readonly EchoPath<Turn>[]): IndexTurn<Turn>[] {
  const best = paths.reduce((most, { likeness }) => Math.max(most, likeness), 0)
  return paths.filter(({ likeness }) => likeness === best).flatMap(({ node }) => node.answers)
}

/** @param requests where the call's messages end in the tree */
function choose<Turn>(
  turns: readonly IndexTurn<Turn>[],
  requests: readonly EchoPath<Turn>[],
): IndexTurn<Turn> | undefined {
  if (turns.length < 2) return turns[0]
  const latestFirst = turns.toSorted((left, right) => right.order - left.order)
  const known = new Set(requests.map(({ node }) => node))
  return (
    latestFirst.find(({ continuations }) => continuations.some(({ request }) => known.has(request))) ??
    latestFirst.find(({ continuations }) => continuations.length === 0) ??
    latestFirst[0]
  )
}

/** What was sampled, as a message. */
export function sampledMessage({ content, reasoning, toolCalls }: SampledMessage): ChatMessage {
  return { role: 'assistant', content, reasoning_content: reasoning, tool_calls: [...toolCalls] }
}
