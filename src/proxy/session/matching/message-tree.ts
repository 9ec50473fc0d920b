/**
 * The messages of a session as a tree: conversations share the nodes of what they begin with. A node keeps digests,
 * and no text but an answer's reasoning.
 */
import type { EditedCalls } from '../../store/port/turn-store.ts'
import {
  type AssistantKey,
  computeFrameDigest,
  countLetters,
  type MessageKey,
  readWording,
  type Wording,
} from './message-key.ts'
import { isArgumentsEcho, type ToolArguments } from './tool-arguments.ts'

/** Of an assistant message, what an echo is compared with. */
interface EchoReference {
  readonly reasoning: string | undefined
  readonly wording: Wording
  /** Only if arguments are malformed: all of them, and the digest of everything else. */
  readonly malformed:
    | { readonly arguments: readonly ToolArguments[]; readonly frameDigest: string }
    | undefined
}

/** Of calls, fewer letters and digits by more than this were cut away on purpose. */
const MAX_TIDIED_AWAY = 1_000

/** One for all nodes, of which there are many. Lists grow by `concat`: one that is pushed to has room for sixteen more. */
const NONE: readonly never[] = []

/** A message after those before it. `Answer` is what is known of a turn that was answered with this message. */
export class MessageNode<Answer> {
  readonly #digest: string
  readonly #said: EchoReference | undefined
  /**
   * With one digest, those that came first; nearly always that is one, and the only one. Several assistant messages have
   * one digest when they differ in reasoning or wording: each stays apart, because an echo may be of any of them and
   * its continuations belong to one.
   */
  #children: readonly MessageNode<Answer>[] = NONE
  /** With other digests. */
  #others: Map<string, readonly MessageNode<Answer>[]> | undefined
  /** Those children that an echo may have under another digest. */
  #malformed: readonly MessageNode<Answer>[] = NONE
  /** Those children that are answers whose calls have ids of the proxy's own, by the names of these sets. */
  #called: Map<string, MessageNode<Answer>> | undefined
  #answers: readonly Answer[] = NONE
  /** Of an answer with such calls. */
  #letters = 0

  private constructor(digest: string, said: EchoReference | undefined) {
    this.#digest = digest
    this.#said = said
  }

  /** Before the first message. */
  static root<Answer>(): MessageNode<Answer> {
    return new MessageNode('', undefined)
  }

  get answers(): readonly Answer[] {
    return this.#answers
  }

  addAnswer(answer: Answer): void {
    this.#answers = this.#answers.concat([answer])
  }

  /** @param answer the node after this one of an answer that says this; its calls name it from now on */
  noteCalls({ assistant }: MessageKey, answer: MessageNode<Answer>): void {
    if (assistant?.drawnCalls === undefined) return
    answer.#letters = countLetters(assistant)
    this.#called ??= new Map()
    this.#called.set(assistant.drawnCalls, answer)
  }

  /** The answer with exactly the calls of this message, by their ids. */
  calledBy({ assistant }: MessageKey): MessageNode<Answer> | undefined {
    return assistant?.drawnCalls === undefined ? undefined : this.#called?.get(assistant.drawnCalls)
  }

  /** Whether a message with the calls of this answer is its echo. */
  isKeptBy({ digest, assistant }: MessageKey, edited: EditedCalls): boolean {
    if (digest === this.#digest || edited === 'keep') return true
    return edited === 'auto' && this.#letters - countLetters(assistant!) <= MAX_TIDIED_AWAY
  }

  /** The recorded messages that a call's next message may be an echo of. */
  echoedBy(key: MessageKey): readonly MessageNode<Answer>[] {
    const alike = this.#withDigest(key.digest)
    const said = key.assistant
    if (said === undefined) return alike
    const echoed = alike.filter((child) => child.#hasSameReasoning(said))
    if (this.#malformed.length === 0) return echoed
    const frameDigest = computeFrameDigest(said)
    const tidied = this.#malformed.filter(
      (child) => child.#digest !== key.digest && child.#isTidiedTo(said, frameDigest),
    )
    return [...echoed, ...tidied]
  }

  /**
   * The node of this very message after this one, made if need be.
   * @param forked called if a message may be an echo of one more than before
   */
  descend({ digest, assistant }: MessageKey, forked: () => void): MessageNode<Answer> {
    const said = assistant && createEchoReference(assistant)
    const alike = this.#withDigest(digest)
    const known = alike.find((child) => child.#isWordedLike(said))
    if (known !== undefined) return known
    const child = new MessageNode<Answer>(digest, said)
    if (alike.length > 0 || said?.malformed !== undefined) forked()
    this.#put(digest, alike.concat(child))
    if (said?.malformed !== undefined) this.#malformed = this.#malformed.concat(child)
    return child
  }

  #withDigest(digest: string): readonly MessageNode<Answer>[] {
    const [first] = this.#children
    if (first !== undefined && first.#digest === digest) return this.#children
    return this.#others?.get(digest) ?? NONE
  }

  #put(digest: string, alike: readonly MessageNode<Answer>[]): void {
    const first = this.#children[0] ?? alike[0]!
    if (first.#digest === digest) this.#children = alike
    else {
      this.#others ??= new Map()
      this.#others.set(digest, alike)
    }
  }

  /**
   * How well an echo keeps the wording of this message: each thing that it keeps outweighs all that come after it.
   * An id belongs to one sample; arguments, spaces and reasoning may be the same by chance.
   */
  likenessTo(wording: Wording, reasoning: string | undefined): number {
    const own = this.#said
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
   * Reasoning may be left out; another one is an edit. Of a field that it does not know, a client may keep the last
   * piece of a stream only, as openai-node's `ChatCompletionStream` does.
   */
  #hasSameReasoning({ reasoning }: AssistantKey): boolean {
    return reasoning === undefined || (this.#said?.reasoning?.endsWith(reasoning) ?? false)
  }

  #isTidiedTo(echo: AssistantKey, frameDigest: string): boolean {
    const malformed = this.#said?.malformed
    return (
      malformed?.frameDigest === frameDigest &&
      this.#hasSameReasoning(echo) &&
      malformed.arguments.every((sampled, place) => isArgumentsEcho(sampled, echo.arguments[place]!))
    )
  }

  #isWordedLike(said: EchoReference | undefined): boolean {
    if (said === undefined || this.#said === undefined) return true
    const [own, other] = [this.#said.wording, said.wording]
    return (
      this.#said.reasoning === said.reasoning &&
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
      ? { arguments: assistant.arguments, frameDigest: computeFrameDigest(assistant) }
      : undefined,
  }
}
