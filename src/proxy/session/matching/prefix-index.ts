/** Finds the turn that a request continues in the tree of one session's turns, by comparing messages. */
import { SideTable } from '../../../base/side-table.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { ToolCallRewritePolicy } from '../../store/port/turn-store.ts'
import { type ConversationKeys, getMessageKey } from './conversation.ts'
import type { MessageKey } from './message-key.ts'
import { computeMessageKey, readWording } from './message-key.ts'
import { MessageNode } from './message-tree.ts'

/** A completed turn in the tree. `turn` is the caller's data. */
export interface IndexTurn<Turn> {
  readonly turn: Turn
  /** Position in request order: larger is later. */
  readonly order: number
  /** Number of messages up to and including the completion. */
  readonly depth: number
  readonly parent: IndexTurn<Turn> | undefined
  readonly request: Node<Turn>
  readonly completion: Node<Turn>
  continuations: readonly IndexTurn<Turn>[]
}

/** A request and the turn that it continues. */
export interface PrefixMatch<Turn> {
  /** The turn that the request continues; undefined: the request starts a separate branch. */
  readonly parent: IndexTurn<Turn> | undefined
  /** Whether another request had already continued the parent, so that the two are branches. */
  readonly isFork: boolean
  /** Number of the request's messages shared with the parent, including its completion; 0 without a parent. */
  readonly sharedMessages: number
  /** Number of the request's messages, from the first one, that a completed turn with the same tools also has. */
  readonly knownMessages: number
  /** The turn whose tool calls a later message repeats in edited form, which starts a branch. */
  readonly edited: IndexTurn<Turn> | undefined
  readonly order: number
  readonly conversation: ConversationKeys
}

/** The completion of a turn, as matching reads it. */
export type CompletionMessage = Pick<Completion, 'content' | 'reasoning' | 'toolCalls'>

type Node<Turn> = MessageNode<IndexTurn<Turn>>

/** A path through the tree that the messages of a request may be an echo of. */
interface EchoPath<Turn> {
  readonly node: Node<Turn>
  /** Score of how well the echo preserves the wording; comparable only between paths of the same request. */
  readonly likeness: number
}

const NONE: readonly never[] = []

/** The position at which a request passed a turn that it may continue. */
interface ParentCandidate<Turn> {
  /** The last message of the turn; undefined: before all messages. */
  readonly message: Message | undefined
  readonly paths: readonly EchoPath<Turn>[]
}

/**
 * The only path on which an index leads to a message. It is attached to the message, so that each request of a
 * conversation starts where the previous request passed its parent.
 */
interface IndexPath {
  readonly index: object
  readonly toolsKey: string
  /** Fork count of the index when the path was stored; another count invalidates it. */
  readonly forkCount: number
  readonly node: unknown
}

const ways = new SideTable<Message, IndexPath>()

/**
 * An index of a session's completed turns by their messages. The parent of a request is the deepest completed turn
 * whose messages and completion it extends, under the same tools. In-flight turns are never parents, so that a request
 * can be matched while others run.
 *
 * - The index finds a completion by its tool calls if the proxy generated their ids, and other messages by content.
 * - Among equally deep parents it chooses the one whose wording the echo preserves best.
 * - Among parents with equal wording it chooses the one that a request with the same messages has continued before (a
 *   retry), else the latest one without a continuation, else the latest: the same order as in trajectories.
 *
 * Matching is one walk: per message one look-up for each recorded message that it may be an echo of. That is one,
 * unless a prompt was sampled several times with completions that differ only in what clients normalize. A request that
 * continues an earlier one starts where that one passed its parent, while only one path leads there.
 *
 * `Turn` is the caller's data of a turn.
 */
export class PrefixIndex<Turn> {
  /** Root nodes by the key of the tools that the turns were sampled with. */
  readonly #roots = new Map<string, Node<Turn>>()
  /** Number of times that a second path appeared where there was one. */
  #forkCount = 0
  #callCount = 0
  readonly #editedCalls: ToolCallRewritePolicy

  /** @param editedCalls the policy for tool calls that an echo has rewritten */
  constructor(editedCalls: ToolCallRewritePolicy = 'auto') {
    this.#editedCalls = editedCalls
  }

  /** Finds a request's parent. Only the request count changes: matching again gives the same until a turn is added. */
  match(conversation: ConversationKeys): PrefixMatch<Turn> {
    const order = this.#callCount++
    const { toolsKey, last } = conversation
    let passed = this.#findPassage(conversation)
    let { paths } = passed
    let isOneWay = paths.length === 1
    let edited: IndexTurn<Turn> | undefined
    let knownMessages = passed.message?.depth ?? 0
    for (const message of getMessagesBetween(passed.message, last)) {
      if (paths.length === 0) break
      const key = getMessageKey(message)
      edited ??= this.#editedBy(paths, key)
      paths = this.#follow(paths, key)
      isOneWay &&= paths.length < 2
      if (paths.length > 0) knownMessages = message.depth
      if (!paths.some(isAnswered)) continue
      passed = { message, paths }
      edited = undefined
    }
    if (isOneWay) this.#remember(passed, toolsKey)
    const parent = choose(selectMostSimilar(passed.paths.filter(isAnswered)), paths)
    const isFork = parent !== undefined && parent.continuations.length > 0
    const sharedMessages = passed.message?.depth ?? 0
    return { parent, isFork, sharedMessages, knownMessages, edited, order, conversation }
  }

  /** Creates the match of a recorded request, whose parent was found when it was in flight. */
  createMatch(parent: IndexTurn<Turn> | undefined, conversation: ConversationKeys): PrefixMatch<Turn> {
    const order = this.#callCount++
    const sharedMessages = parent?.depth ?? 0
    const knownMessages = sharedMessages
    return { parent, isFork: false, sharedMessages, knownMessages, edited: undefined, order, conversation }
  }

  /**
   * Adds a completed turn, so that requests can continue it. This holds even if its response was not delivered, since
   * a retry may receive it.
   */
  add(call: PrefixMatch<Turn>, completion: CompletionMessage, turn: Turn): IndexTurn<Turn> {
    const { parent, sharedMessages, order, conversation } = call
    let request = parent?.completion ?? this.#getRoot(conversation.toolsKey)
    // Start at the parent: older messages of the request are echoes, and the sampled messages are kept.
    const isShared = ({ depth }: Message) => depth <= sharedMessages
    for (const message of getMessagesBetween(undefined, conversation.last, isShared)) {
      request = request.descend(getMessageKey(message), this.#forked)
    }
    const sampledKey = computeMessageKey(toMessage(completion))
    const node = request.descend(sampledKey, this.#forked)
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
    request.registerToolCalls(sampledKey, node)
    if (parent) parent.continuations = parent.continuations.concat(added)
    return added
  }

  readonly #forked = (): void => {
    this.#forkCount += 1
  }

  /** Returns the latest stored passage of the request's conversation, or the root. */
  #findPassage({ toolsKey, last }: ConversationKeys): ParentCandidate<Turn> {
    for (let message = last; message !== undefined; message = message.parent) {
      const way = ways.of(message)
      if (way?.index !== this || way.toolsKey !== toolsKey || way.forkCount !== this.#forkCount) continue
      return { message, paths: [{ node: way.node as Node<Turn>, likeness: 0 }] }
    }
    const root = this.#roots.get(toolsKey)
    return { message: undefined, paths: root === undefined ? [] : [{ node: root, likeness: 0 }] }
  }

  /** Extends every path by one message and drops the paths that end. */
  #follow(paths: readonly EchoPath<Turn>[], key: MessageKey): EchoPath<Turn>[] {
    const next = paths.flatMap(({ node, likeness }) =>
      this.#echoedBy(node, key).map((echoed) => ({ node: echoed, likeness })),
    )
    const assistant = key.assistant
    if (next.length < 2 || assistant === undefined) return next
    const wording = readWording(assistant)
    return next.map(({ node, likeness }) => ({
      node,
      likeness: likeness + node.scoreLikeness(wording, assistant.reasoning),
    }))
  }

  /** Finds a completion by its tool calls; a message without such tool calls or with edited ones, by content. */
  #echoedBy(node: Node<Turn>, key: MessageKey): readonly Node<Turn>[] {
    const answer = node.findByToolCalls(key)
    return answer?.isKeptBy(key, this.#editedCalls) ? [answer] : node.listEchoCandidates(key)
  }

  #editedBy(paths: readonly EchoPath<Turn>[], key: MessageKey): IndexTurn<Turn> | undefined {
    if (key.assistant?.drawnCalls === undefined) return undefined
    const responses = paths.flatMap(({ node }) => node.findByToolCalls(key) ?? [])
    return responses.find((answer) => !answer.isKeptBy(key, this.#editedCalls))?.answers[0]
  }

  #remember({ message, paths: [path] }: ParentCandidate<Turn>, toolsKey: string): void {
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

function selectMostSimilar<Turn>(paths: readonly EchoPath<Turn>[]): IndexTurn<Turn>[] {
  const best = paths.reduce((most, { likeness }) => Math.max(most, likeness), 0)
  return paths.filter(({ likeness }) => likeness === best).flatMap(({ node }) => node.answers)
}

/**
 * Chooses the parent among turns that match equally well.
 * @param requests the paths at which the request's messages end in the tree
 */
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

/** Converts a completion to an assistant message. */
export function toMessage({ content, reasoning, toolCalls }: CompletionMessage): ChatMessage {
  return { role: 'assistant', content, reasoning_content: reasoning, tool_calls: [...toolCalls] }
}
