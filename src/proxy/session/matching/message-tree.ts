/**
 * The messages of a session as a tree: conversations share the nodes of their common prefix. A node stores digests, and
 * no text except the reasoning of an assistant message.
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

/** The parts of a recorded assistant message that an echo is compared with. */
interface EchoReference {
  readonly reasoning: string | undefined
  readonly wording: Wording
  /** All arguments and the digest of everything else; set only if some arguments are malformed. */
  readonly malformed:
    | { readonly arguments: readonly ToolArguments[]; readonly frameDigest: string }
    | undefined
}

/** Most letters and digits that a normalized echo of tool calls may lack; a larger loss is a deliberate edit. */
const MAX_TIDIED_AWAY = 1_000

/** Shared by all nodes to save memory. Lists grow by `concat`, since `push` reserves capacity for sixteen more. */
const NONE: readonly never[] = []

/** A message at its position in the tree. `Answer` is the data of a turn whose completion is this message. */
export class MessageNode<Answer> {
  readonly #digest: string
  readonly #reference: EchoReference | undefined
  /**
   * The children with the digest that was added first; nearly always the only child. Several assistant messages share a
   * digest when they differ in reasoning or wording. Each has its own node, because an echo may be of any of them and
   * its continuations belong to one.
   */
  #children: readonly MessageNode<Answer>[] = NONE
  /** The children with other digests. */
  #others: Map<string, readonly MessageNode<Answer>[]> | undefined
  /** The children with malformed arguments: their echoes may have another digest. */
  #malformed: readonly MessageNode<Answer>[] = NONE
  /** The completions whose tool calls have proxy-generated ids, by the keys of these sets. */
  #called: Map<string, MessageNode<Answer>> | undefined
  #answers: readonly Answer[] = NONE
  /** Letter count of a completion with such tool calls. */
  #letters = 0

  private constructor(digest: string, reference: EchoReference | undefined) {
    this.#digest = digest
    this.#reference = reference
  }

  /** Creates the node before the first message. */
  static root<Answer>(): MessageNode<Answer> {
    return new MessageNode('', undefined)
  }

  get answers(): readonly Answer[] {
    return this.#answers
  }

  addAnswer(answer: Answer): void {
    this.#answers = this.#answers.concat([answer])
  }

  /** Registers the node of a completion under the key of its tool calls. */
  registerToolCalls({ assistant }: MessageKey, answer: MessageNode<Answer>): void {
    if (assistant?.drawnCalls === undefined) return
    answer.#letters = countLetters(assistant)
    this.#called ??= new Map()
    this.#called.set(assistant.drawnCalls, answer)
  }

  /** Finds the completion whose tool-call ids are exactly those of this message. */
  findByToolCalls({ assistant }: MessageKey): MessageNode<Answer> | undefined {
    return assistant?.drawnCalls === undefined ? undefined : this.#called?.get(assistant.drawnCalls)
  }

  /** Returns whether a message with the tool calls of this completion counts as its echo. */
  isKeptBy({ digest, assistant }: MessageKey, edited: ToolCallRewritePolicy): boolean {
    if (digest === this.#digest || edited === 'keep') return true
    return edited === 'auto' && this.#letters - countLetters(assistant!) <= MAX_TIDIED_AWAY
  }

  /** Returns the recorded messages that a request's next message may be an echo of. */
  listEchoCandidates(key: MessageKey): readonly MessageNode<Answer>[] {
    const withSameDigest = this.#withDigest(key.digest)
    const assistant = key.assistant
    if (assistant === undefined) return withSameDigest
    const echoed = withSameDigest.filter((child) => child.#hasSameReasoning(assistant))
    if (this.#malformed.length === 0) return echoed
    const frameDigest = computeDigestWithoutArguments(assistant)
    const tidied = this.#malformed.filter(
      (child) => child.#digest !== key.digest && child.#isTidiedTo(assistant, frameDigest),
    )
    return [...echoed, ...tidied]
  }

  /**
   * Returns the child for exactly this message and creates it if it is missing.
   * @param forked called if a message may now be an echo of one more node
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
   * Scores how well an echo preserves the wording of this message. Each preserved feature outweighs all later ones.
   * An id belongs to one completion; arguments, white space and reasoning may be equal by chance.
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
   * Returns whether the reasoning is absent or a suffix of the recorded one; other reasoning is an edit. A client may
   * keep only the last chunk of a field that it does not know, as openai-node's `ChatCompletionStream` does.
   */
  #hasSameReasoning({ reasoning }: AssistantKey): boolean {
    return reasoning === undefined || (this.#reference?.reasoning?.endsWith(reasoning) ?? false)
  }

  #isTidiedTo(echo: AssistantKey, frameDigest: string): boolean {
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
