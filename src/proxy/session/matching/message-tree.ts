/**
 * The messages of a session as a tree, in which conversations share the nodes of their common prefix. A node stores
 * digests instead of text, except for the reasoning of an assistant message.
 */
import type { ToolCallRewritePolicy } from '../../store/port/turn-store.ts'
import {
  type AssistantKey,
  computeDigestWithoutArguments,
  countLetters,
  type MessageKey,
  readWording,
  type Wording,
} from './message-key.ts'
import { isArgumentsEcho, type ToolArguments } from './tool-arguments.ts'

/** The parts of a recorded assistant message with which a possible echo is compared. */
interface EchoReference {
  readonly reasoning: string | undefined
  readonly wording: Wording
  /** All arguments, and the digest of the message without them; set only if some arguments are malformed. */
  readonly malformed:
    | { readonly arguments: readonly ToolArguments[]; readonly frameDigest: string }
    | undefined
}

/**
 * The maximum number of letters and digits that an echo may lack compared with the completion. A larger loss is an edit
 * by the agent, not normalization by a client.
 */
const MAX_MISSING_LETTERS = 1_000

/**
 * The empty list, which all nodes share to save memory. Lists grow by `concat`, since `push` reserves memory for
 * sixteen more elements.
 */
const NONE: readonly never[] = []

/**
 * A message at its position in the tree. `Answer` is the type of the data of a turn whose completion is this message.
 */
export class MessageNode<Answer> {
  readonly #digest: string
  readonly #reference: EchoReference | undefined
  /**
   * The children whose digest is that of the first child; nearly always only that one. Assistant messages with equal
   * digests have separate nodes if their reasoning or wording differs, because an echo may match any of them, but the
   * messages after it continue only one.
   */
  #children: readonly MessageNode<Answer>[] = NONE
  /** The children with other digests. */
  #others: Map<string, readonly MessageNode<Answer>[]> | undefined
  /** The children with malformed arguments, whose echoes may have another digest. */
  #malformed: readonly MessageNode<Answer>[] = NONE
  /** The children that are completions with proxy-generated tool-call ids, by the keys of the sets of these ids. */
  #called: Map<string, MessageNode<Answer>> | undefined
  #answers: readonly Answer[] = NONE
  /** The result of {@link countLetters} for a completion in {@link #called}. */
  #letters = 0

  private constructor(digest: string, reference: EchoReference | undefined) {
    this.#digest = digest
    this.#reference = reference
  }

  /** Creates a root, the node before the first message. */
  static root<Answer>(): MessageNode<Answer> {
    return new MessageNode('', undefined)
  }

  /** The turns whose completion is this message. */
  get answers(): readonly Answer[] {
    return this.#answers
  }

  addAnswer(answer: Answer): void {
    this.#answers = this.#answers.concat([answer])
  }

  /** Registers a child that is a completion, for {@link findByToolCalls}. */
  registerToolCalls({ assistant }: MessageKey, answer: MessageNode<Answer>): void {
    if (assistant?.drawnCalls === undefined) return
    answer.#letters = countLetters(assistant)
    this.#called ??= new Map()
    this.#called.set(assistant.drawnCalls, answer)
  }

  /** Returns the completion that follows this message and has exactly the tool-call ids of the given message. */
  findByToolCalls({ assistant }: MessageKey): MessageNode<Answer> | undefined {
    return assistant?.drawnCalls === undefined ? undefined : this.#called?.get(assistant.drawnCalls)
  }

  /** Returns whether a message with the tool-call ids of this completion counts as its echo, instead of an edit. */
  isKeptBy({ digest, assistant }: MessageKey, edited: ToolCallRewritePolicy): boolean {
    if (digest === this.#digest || edited === 'keep') return true
    return edited === 'auto' && this.#letters - countLetters(assistant!) <= MAX_MISSING_LETTERS
  }

  /** Returns the children of which a request's next message may be an echo. */
  listEchoCandidates(key: MessageKey): readonly MessageNode<Answer>[] {
    const withSameDigest = this.#withDigest(key.digest)
    const assistant = key.assistant
    if (assistant === undefined) return withSameDigest
    const echoed = withSameDigest.filter((child) => child.#hasSameReasoning(assistant))
    if (this.#malformed.length === 0) return echoed
    const frameDigest = computeDigestWithoutArguments(assistant)
    const tidied = this.#malformed.filter(
      (child) => child.#digest !== key.digest && child.#isRepairedTo(assistant, frameDigest),
    )
    return [...echoed, ...tidied]
  }

  /**
   * Returns the child for exactly this message, which is created if it is missing.
   * @param forked called if there is now one more node of which a message may be an echo
   */
  descend({ digest, assistant }: MessageKey, forked: () => void): MessageNode<Answer> {
    const reference = assistant && createEchoReference(assistant)
    const withSameDigest = this.#withDigest(digest)
    const known = withSameDigest.find((child) => child.#isWordedLike(reference))
    if (known !== undefined) return known
    const child = new MessageNode<Answer>(digest, reference)
    if (withSameDigest.length > 0 || reference?.malformed !== undefined) forked()
    this.#put(digest, withSameDigest.concat(child))
    if (reference?.malformed !== undefined) this.#malformed = this.#malformed.concat(child)
    return child
  }

  #withDigest(digest: string): readonly MessageNode<Answer>[] {
    const [first] = this.#children
    if (first !== undefined && first.#digest === digest) return this.#children
    return this.#others?.get(digest) ?? NONE
  }

  #put(digest: string, withSameDigest: readonly MessageNode<Answer>[]): void {
    const first = this.#children[0] ?? withSameDigest[0]!
    if (first.#digest === digest) this.#children = withSameDigest
    else {
      this.#others ??= new Map()
      this.#others.set(digest, withSameDigest)
    }
  }

  /**
   * Scores how well an echo preserves the wording of this message. Each feature outweighs all later ones together: ids
   * identify one completion, whereas arguments, white space and reasoning may be equal by chance.
   */
  scoreLikeness(wording: Wording, reasoning: string | undefined): number {
    const own = this.#reference
    if (own === undefined) return 0
    const kept = [
      own.wording.toolCallIds === wording.toolCallIds,
      own.wording.arguments === wording.arguments,
      own.wording.margins === wording.margins,
      own.reasoning === reasoning,
    ]
    return kept.reduce((weight, isKept) => weight * 2 + Number(isKept), 0)
  }

  /**
   * Returns whether the reasoning is absent or a suffix of the recorded one; other reasoning is an edit. Clients may
   * retain only the last chunk of a field that they do not know, as openai-node's `ChatCompletionStream` does.
   */
  #hasSameReasoning({ reasoning }: AssistantKey): boolean {
    return reasoning === undefined || (this.#reference?.reasoning?.endsWith(reasoning) ?? false)
  }

  /** Returns whether `echo` is this message with repaired or replaced arguments. */
  #isRepairedTo(echo: AssistantKey, frameDigest: string): boolean {
    const malformed = this.#reference?.malformed
    return (
      malformed?.frameDigest === frameDigest &&
      this.#hasSameReasoning(echo) &&
      malformed.arguments.every((sampled, index) => isArgumentsEcho(sampled, echo.arguments[index]!))
    )
  }

  #isWordedLike(reference: EchoReference | undefined): boolean {
    if (reference === undefined || this.#reference === undefined) return true
    const [own, other] = [this.#reference.wording, reference.wording]
    return (
      this.#reference.reasoning === reference.reasoning &&
      own.toolCallIds === other.toolCallIds &&
      own.arguments === other.arguments &&
      own.margins === other.margins
    )
  }
}

function createEchoReference(assistant: AssistantKey): EchoReference {
  const isMalformed = assistant.arguments.some(({ malformed }) => malformed)
  return {
    reasoning: assistant.reasoning,
    wording: readWording(assistant),
    malformed: isMalformed
      ? { arguments: assistant.arguments, frameDigest: computeDigestWithoutArguments(assistant) }
      : undefined,
  }
}
