/** The turns of a session that requests can continue, with their messages and tokens. */
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import type { ToolCallRewritePolicy, TurnStep, TurnStore } from '../../store/port/turn-store.ts'
import type { ConversationKeys } from './conversation.ts'
import { type CompletionMessage, PrefixIndex, type PrefixMatch } from './prefix-index.ts'
import { rebuildIndex, toSampledMessage } from './rebuild-index.ts'
import { isProxyToolCallId } from './tool-call-ids.ts'

/** A turn that can be continued. `prompt` also has the ids of its completion. */
export interface SessionTurn {
  readonly turnId: string
  readonly prompt: PromptIds
  /**
   * Whether the routed experts of all its tokens except the last one are recorded, with this turn or those that it
   * continues.
   */
  readonly hasExperts?: boolean
  /** The completion, set if its tool calls have proxy-generated ids: agents may rewrite such tool calls. */
  readonly completionMessage?: CompletionMessage
}

/** The measured size of a turn without its tokens: its nodes in the prefix index. */
const TURN_BYTES = 2_000

/** The cached turns of one session, and their size. */
export class SessionTurns {
  readonly #index: PrefixIndex<SessionTurn>
  #bytes: number

  /** @param bytes the size of the turns in the index */
  constructor(index: PrefixIndex<SessionTurn> = new PrefixIndex(), bytes = 0) {
    this.#index = index
    this.#bytes = bytes
  }

  /** The size of the turns; 0 if there are none. */
  get bytes(): number {
    return this.#bytes
  }

  match(conversation: ConversationKeys): PrefixMatch<SessionTurn> {
    return this.#index.match(conversation)
  }

  add(
    match: PrefixMatch<SessionTurn>,
    completion: CompletionMessage,
    turn: Omit<SessionTurn, 'completionMessage'>,
  ): void {
    const known = { ...turn, ...toMessageField(completion) }
    this.#index.add(match, completion, known)
    this.#bytes += getByteSize(known)
  }
}

function toMessageField({
  content,
  reasoning,
  toolCalls,
}: CompletionMessage): Pick<SessionTurn, 'completionMessage'> {
  const isDrawnFor = toolCalls.length > 0 && toolCalls.every(({ id }) => isProxyToolCallId(id))
  return isDrawnFor ? { completionMessage: { content, reasoning, toolCalls } } : {}
}

function getByteSize({ prompt, completionMessage }: SessionTurn): number {
  return (
    TURN_BYTES +
    prompt.bytes +
    (completionMessage === undefined ? 0 : 2 * JSON.stringify(completionMessage).length)
  )
}

/**
 * Reads the turns of a session from the store, for instance after a restart.
 * @param getConversation computes the keys of a recorded request, equal to those that it had in flight
 * @param editedCalls the session's tool-call rewrite policy
 * @throws ProxyError `store_failed`
 */
export async function readSessionTurns(
  store: Pick<TurnStore, 'readSteps'>,
  sessionId: string,
  getConversation: (turn: TurnStep) => ConversationKeys | Promise<ConversationKeys>,
  editedCalls?: ToolCallRewritePolicy,
): Promise<SessionTurns> {
  /**
   * The prompts of all turns by turn id, whatever their status, since the store may represent a later prompt relative
   * to any of them.
   */
  const prompts = new Map<string, PromptIds>()
  let bytes = 0
  const getTurn = (turn: TurnStep): SessionTurn | undefined => {
    const { turnId, exact } = turn
    const known = {
      turnId,
      prompt: prompts.get(turnId)!,
      ...toMessageField(toSampledMessage(turn)),
    }
    bytes += getByteSize(known)
    // A turn that ended at a limit of its session has no prompt, because no engine sampled it.
    return exact && known.prompt.length > 0 ? known : undefined
  }
  const turns = attachPrompts(store.readSteps(sessionId), prompts)
  const index = await rebuildIndex(turns, getTurn, getConversation, editedCalls)
  return new SessionTurns(index, bytes)
}

/** Yields the turns and adds the prompt of each to `prompts`. */
async function* attachPrompts(
  turns: AsyncIterable<TurnStep>,
  prompts: Map<string, PromptIds>,
): AsyncGenerator<TurnStep> {
  for await (const turn of turns) {
    const { base, shared, rest } = turn.promptStep
    const prompt = new PromptIds(rest, base === null ? undefined : prompts.get(base), shared)
    prompt.completion = turn.completionTokenIds
    prompts.set(turn.turnId, prompt)
    yield turn
  }
}
