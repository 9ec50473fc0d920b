/** Finds the turn that a request continues, by comparing its messages with a tree of the session's turns. */
import { SideTable } from '../../../base/side-table.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { ToolCallRewritePolicy } from '../../store/port/turn-store.ts'
import { type ConversationKeys, getMessageKey } from './conversation.ts'
import type { MessageKey } from './message-key.ts'
import { computeMessageKey, readWording } from './message-key.ts'
import { MessageNode } from './message-tree.ts'

/** A completed turn in the tree. `Turn` is the type of the caller's data. */
export interface IndexTurn<Turn> {
  readonly turn: Turn
  /** The position of its request in the order of all requests. */
  readonly order: number
  /** The number of messages up to and including the completion. */
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
  /**
   * The number of the request's messages that the parent also has, including the parent's completion; 0 without a
   * parent.
   */
  readonly sharedMessages: number
  /**
   * The number of the request's messages, from the first one on, that completed turns with the same tools also have.
   */
  readonly knownMessages: number
  /** The turn whose tool calls the agent sent back in edited form, which starts a branch; undefined: there is none. */
  readonly edited: IndexTurn<Turn> | undefined
  readonly order: number
  readonly conversation: ConversationKeys
}

/** The fields of a completion that matching reads. */
export type CompletionMessage = Pick<Completion, 'content' | 'reasoning' | 'toolCalls'>

/** A message in the tree; its data are the turns whose completion it is. */
type Node<Turn> = MessageNode<IndexTurn<Turn>>

/** A path through the tree along which each message of a request may be an echo. */
interface EchoPath<Turn> {
  readonly node: Node<Turn>
  /** The sum of {@link MessageNode.scoreLikeness} along the path; comparable only between paths of one request. */
  readonly likeness: number
}

const NONE: readonly never[] = []

/** A position in a request, and the paths to it. A turn whose completion is at the end of a path may be the parent. */
interface ParentCandidate<Turn> {
  /** The request's message that echoes the completion; undefined: the position before all messages. */
  readonly message: Message | undefined
  readonly paths: readonly EchoPath<Turn>[]
}

/**
 * The path of an index to a message, stored if there is only one. It is attached to the message, so that the next
 * request of a conversation starts at the completion that the previous one continued.
 */
interface IndexPath {
  readonly index: object
  readonly toolsKey: string
  /** The fork count of the index when the path was stored. The path is invalid once the count has changed. */
  readonly forkCount: number
  readonly node: unknown
}

const ways = new SideTable<Message, IndexPath>()

/**
 * An index of a session's completed turns by their messages. The parent of a request is the deepest completed turn
 * whose messages and completion it extends, under the same tools. In-flight turns are never parents, so that a request
 * can be matched while others run.
 *
 * - A completion with proxy-generated tool-call ids is found by these ids, any other message by its content.
 * - Among equally deep parents, the one whose wording the echo preserves best is chosen.
 * - Among those with equal wording, the one that a request with the same messages has continued before (a retry) is
 *   chosen, else the latest one without a continuation, else the latest: the same order as in trajectories.
 *
 * Matching walks the tree once, with one look-up per message for each recorded message of which it may be an echo. That
 * is one, unless one prompt was sampled several times with completions that differ only in what clients normalize. A
 * request that continues an earlier one starts at the completion that the earlier one continued, provided that only one
 * path leads there.
 *
 * `Turn` is the type of the caller's data of a turn.
 */
export class PrefixIndex<Turn> {
  /** The root nodes, by the key of the tools with which the turns were sampled. */
  readonly #roots = new Map<string, Node<Turn>>()
  /** The number of times that a message became a possible echo of one more node, which invalidates stored paths. */
  #forkCount = 0
  #requestCount = 0
  readonly #editedCalls: ToolCallRewritePolicy

  /** @param editedCalls the policy for tool calls that an agent has rewritten */
  constructor(editedCalls: ToolCallRewritePolicy = 'auto') {
    this.#editedCalls = editedCalls
  }

  /** Finds the parent of a request. Repeating it has the same result, apart from `order`, until a turn is added. */
  match(conversation: ConversationKeys): PrefixMatch<Turn> {
    const order = this.#requestCount++
    const { toolsKey, last } = conversation
    let passed = this.#findStoredPath(conversation)
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
      if (!paths.some(endsAtCompletion)) continue
      passed = { message, paths }
      edited = undefined
    }
    if (isOneWay) this.#remember(passed, toolsKey)
    const parent = chooseParent(selectMostSimilar(passed.paths.filter(endsAtCompletion)), paths)
    const isFork = parent !== undefined && parent.continuations.length > 0
    const sharedMessages = passed.message?.depth ?? 0
    return { parent, isFork, sharedMessages, knownMessages, edited, order, conversation }
  }

  /**
   * Creates the match of a recorded request, whose parent is known because it was found when the request was in flight.
   */
  createMatch(parent: IndexTurn<Turn> | undefined, conversation: ConversationKeys): PrefixMatch<Turn> {
    const order = this.#requestCount++
    const sharedMessages = parent?.depth ?? 0
    const knownMessages = sharedMessages
    return { parent, isFork: false, sharedMessages, knownMessages, edited: undefined, order, conversation }
  }

  /**
   * Adds a completed turn, so that requests can continue it. It must be added even if its response was not delivered,
   * since a retry may receive it.
   * @param match the match of its request
   */
  add(match: PrefixMatch<Turn>, completion: CompletionMessage, turn: Turn): IndexTurn<Turn> {
    const { parent, sharedMessages, order, conversation } = match
    let request = parent?.completion ?? this.#getRoot(conversation.toolsKey)
    // Start after the parent: its messages and its completion, which the request repeats, are already in the tree.
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

  /** Returns the last stored path of the request's conversation, or the root. */
  #findStoredPath({ toolsKey, last }: ConversationKeys): ParentCandidate<Turn> {
    for (let message = last; message !== undefined; message = message.parent) {
      const way = ways.get(message)
      if (way?.index !== this || way.toolsKey !== toolsKey || way.forkCount !== this.#forkCount) continue
      return { message, paths: [{ node: way.node as Node<Turn>, likeness: 0 }] }
    }
    const root = this.#roots.get(toolsKey)
    return { message: undefined, paths: root === undefined ? [] : [{ node: root, likeness: 0 }] }
  }

  /** Extends each path by one message. Drops the paths that cannot be extended, and may split a path into several. */
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

  /**
   * Returns the nodes of which a message may be an echo: the completion with its tool-call ids, unless they were
   * edited; otherwise the nodes with its content.
   */
  #echoedBy(node: Node<Turn>, key: MessageKey): readonly Node<Turn>[] {
    const answer = node.findByToolCalls(key)
    return answer?.isKeptBy(key, this.#editedCalls) ? [answer] : node.listEchoCandidates(key)
  }

  /** Returns the turn whose tool calls the message repeats in edited form. */
  #editedBy(paths: readonly EchoPath<Turn>[], key: MessageKey): IndexTurn<Turn> | undefined {
    if (key.assistant?.drawnCalls === undefined) return undefined
    const responses = paths.flatMap(({ node }) => node.findByToolCalls(key) ?? [])
    return responses.find((answer) => !answer.isKeptBy(key, this.#editedCalls))?.answers[0]
  }

  /** Stores the only path to a message, for later requests of the conversation. */
  #remember({ message, paths: [path] }: ParentCandidate<Turn>, toolsKey: string): void {
    if (message === undefined || path === undefined) return
    ways.attach(message, { index: this, toolsKey, forkCount: this.#forkCount, node: path.node })
  }

  #getRoot(toolsKey: string): Node<Turn> {
    const root: Node<Turn> = this.#roots.get(toolsKey) ?? MessageNode.root()
    this.#roots.set(toolsKey, root)
    return root
  }
}

/** Returns whether the path ends at the completion of a turn. */
function endsAtCompletion<Turn>({ node }: EchoPath<Turn>): boolean {
  return node.answers.length > 0
}

function selectMostSimilar<Turn>(paths: readonly EchoPath<Turn>[]): IndexTurn<Turn>[] {
  const best = paths.reduce((most, { likeness }) => Math.max(most, likeness), 0)
  return paths.filter(({ likeness }) => likeness === best).flatMap(({ node }) => node.answers)
}

/**
 * Chooses the parent among turns that match equally well.
 * @param requests the paths along all messages of the request; empty if some are not in the tree
 */
function chooseParent<Turn>(
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
