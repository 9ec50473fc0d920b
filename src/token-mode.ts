/**
 * Token mode: opens the model of `--tokenizer`, reports its prompt format and tool parser, and checks that engines
 * match it.
 */
import { ProxyError } from './base/errors.ts'
import { logEvent } from './base/log-events.ts'
import type { Logger } from './base/logger.ts'
import { requireProduct } from './included-products.ts'
import { REASONING_EFFORTS } from './protocol/canonical/reasoning-effort.ts'
import type { ServeConfig } from './proxy/config/options/serve.ts'
import type { Backend, BackendMember } from './proxy/engines/port/backend.ts'
import {
  COMPARED_CHATS,
  type ExpectedTokenizer,
  TOKENIZER_TEXT,
} from './proxy/engines/port/expected-tokenizer.ts'
import { renderFullPrompt } from './proxy/session/prompts/prompt-planner.ts'
import {
  openTokenModel,
  type StartingModel,
  startTokenModel,
  type TokenModel,
  type TokenModelOptions,
} from './proxy/tokens/model/token-model.ts'

/** Starts the model before the rest of the program is loaded. @throws the errors of {@link startTokenModel} */
export async function startModel(config: ServeConfig): Promise<StartingModel | undefined> {
  const options = getModelOptions(config)
  return options && (await startTokenModel(options))
}

/**
 * Opens the model and logs warnings about its files, its fast tokenizer and its specialized chat template.
 * @returns undefined in chat mode
 */
export async function openModel(
  config: ServeConfig,
  logger: Logger,
  open: typeof openTokenModel = openTokenModel,
): Promise<TokenModel | undefined> {
  const options = getModelOptions(config)
  if (options === undefined) return undefined
  const model = await open(options)
  model.onTokenizerFault?.(({ why: reason, textSha256: text_sha256, chars, error: err }) =>
    logEvent(logger, 'fast_tokenizer_disabled', { reason, text_sha256, chars, err }),
  )
  model.onTemplateFault?.(() => logEvent(logger, 'template_specialization_disabled', {}))
  if (model.encodedBy === 'javascript') logEvent(logger, 'fast_tokenizer_missing', {})
  if (model.unlistedFiles !== undefined)
    logEvent(logger, 'model_files_missing', { files: model.unlistedFiles })
  return model
}

/** Returns the options of the model; undefined in chat mode. */
function getModelOptions(config: ServeConfig): TokenModelOptions | undefined {
  const { tokenizer, toolParser: parser, promptFormat, contextLength, tokenizerBackend } = config
  const { promptEncoder, trustModelCode } = config
  if (tokenizer === undefined) return undefined
  const source = tokenizer === 'embedded' ? requireProduct('embedded').embeddedModelFolder() : tokenizer
  return { source, parser, promptFormat, contextLength, tokenizerBackend, promptEncoder, trustModelCode }
}

/**
 * Returns the token ids that an engine with the model's tokenizer and chat template returns for fixed texts and chats.
 * @param name the value of `--tokenizer`
 */
export async function getExpectedTokenizer(name: string, model: TokenModel): Promise<ExpectedTokenizer> {
  const { tokenizer } = model
  return {
    name,
    ids: tokenizer.encode(TOKENIZER_TEXT),
    chatIds: await renderComparedChats(model),
    decode: (ids) => tokenizer.decode(ids),
  }
}

/** Renders {@link COMPARED_CHATS}, except those that the chat template rejects: some templates reject tools. */
async function renderComparedChats(model: TokenModel): Promise<ExpectedTokenizer['chatIds']> {
  const prompts = await Promise.all(
    Object.entries(COMPARED_CHATS).map(async ([name, chat]) => {
      const prompt = await renderFullPrompt(model, chat).catch(() => undefined)
      return prompt && [name, [...prompt.ids]]
    }),
  )
  return Object.fromEntries(prompts.filter((prompt) => prompt !== undefined))
}

/**
 * Checks that at least one engine can serve token mode. If there are no engines yet, each is checked when it is added.
 * @throws ProxyError `start_failed` if no engine accepts token ids, `config_invalid` if all have another tokenizer
 */
export function checkTokenEngines(members: readonly BackendMember[]): void {
  if (members.length > 0 && !members.some((member) => member.takesTokenIds)) {
    throw new ProxyError(
      'start_failed',
      `token mode needs an engine that accepts token ids, and ${members.map(({ name }) => name).join(', ')} does not: ` +
        'leave out --tokenizer, or use vLLM or SGLang',
    )
  }
  if (members.length > 0 && members.every((member) => member.tokenizer === 'other')) {
    const rejected = members.map(({ name, error }) => `${name}: ${error}`).join('; ')
    throw new ProxyError('config_invalid', `${rejected}; set --tokenizer to the engine's model`)
  }
}

/**
 * Returns the longest context, in tokens, that an engine serves, and logs if one serves less than the model's files
 * state: servers often limit the context to fit their memory (`--max-model-len` of vLLM).
 * @returns undefined if no engine reports its length
 */
export async function findServedLength(
  { contextLength: length }: TokenModel,
  backend: Backend,
  logger: Logger,
): Promise<number | undefined> {
  const served = (await backend.listModels()).flatMap(({ maxModelLen }) => maxModelLen ?? [])
  const least = Math.min(...served)
  const most = served.length === 0 ? undefined : Math.max(...served)
  if (length === undefined || least >= length) return most
  logEvent(logger, 'context_length_limited', { served_length: least, model_length: length })
  return most
}

/** Logs the prompt format and the tool parser, and returns them as fields of `/health`. */
export function reportMarkup(model: TokenModel, logger: Logger) {
  const { parserChoice, promptFormat, promptEncoder, efforts, roles, contextLength } = model
  const { family, chosenBy, evidence, warning } = parserChoice
  const markup = {
    tool_parser: {
      name: chosenBy === 'response_template' ? chosenBy : family.name,
      chosen_by: chosenBy,
      /** The texts of the chat template because of which the parser was chosen. */
      evidence,
      warning: warning || undefined,
    },
    prompt_format: {
      name: promptFormat.name,
      chosen_by: promptFormat.chosenBy,
      evidence: promptFormat.evidence,
      /**
       * The file and the SHA-256 of the code by the model's authors that renders the prompts; undefined: there is none.
       * The SHA-256 is also recorded with each turn.
       */
      encoder: promptEncoder,
      /** The roles of developer messages, and of system messages after the beginning. */
      roles,
    },
    /** undefined: the template rejects a plain chat, so its efforts are unknown. */
    reasoning_efforts: efforts && {
      accepted: REASONING_EFFORTS.filter((effort) => !efforts.rejected.has(effort)),
      /** Whether the effort changes the prompt. */
      read: efforts.isRead,
    },
    /** The maximum number of tokens of prompt and completion together; undefined: the model's files do not state it. */
    context_length: contextLength,
  }
  const { tool_parser, prompt_format, reasoning_efforts } = markup
  if (warning === undefined) logEvent(logger, 'tool_parser_chosen', { tool_parser })
  else logEvent(logger, 'tool_parser_uncertain', { tool_parser, warning })
  logEvent(logger, 'prompt_format_chosen', { prompt_format })
  if (reasoning_efforts) logEvent(logger, 'efforts_probed', { reasoning_efforts })
  return markup
}
