/** vLLM's HTTP tests whose outcome differs behind the proxy, each with its reason, and excluded tests. */

export type ProxyMode = 'chat' | 'token'

export interface Difference {
  /** A test function, below `tests/entrypoints`. */
  test: string
  modes: readonly ProxyMode[]
  reason: string
}

const BOTH: readonly ProxyMode[] = ['chat', 'token']

/** Expands a table: a reason, the modes, a file and its test functions. */
function listDifferences(
  reason: string,
  modes: readonly ProxyMode[],
  file: string,
  ...names: string[]
): Difference[] {
  return names.map((name) => ({ test: `${file}::${name}`, modes, reason }))
}

const CHAT = 'openai/chat_completion/test_chat.py'
const COMPLETION = 'openai/completion/test_completion.py'
const TOKENIZATION = 'serve/tokenize/test_tokenization.py'
const PROMPT_LOGPROBS = 'prompt logprobs are recorded and not sent to the agent'
const LAST_CHUNK = 'the finish reason has a separate chunk without content, as with OpenAI'
const CONTINUOUS_USAGE = 'the last chunk has the usage: the proxy ignores `continuous_usage_stats`'
const ONE_PROMPT = 'a turn has one prompt'
const NO_TOKENIZER = 'chat mode has no tokenizer'
const ALTERNATIVES = 'an agent receives no more alternatives than `top_logprobs`'

export const DIFFERENCES: readonly Difference[] = [
  ...listDifferences(PROMPT_LOGPROBS, BOTH, CHAT, 'test_prompt_logprobs_chat'),
  ...listDifferences(LAST_CHUNK, BOTH, CHAT, 'test_chat_streaming'),
  ...listDifferences(LAST_CHUNK, BOTH, COMPLETION, 'test_completion_streaming'),
  ...listDifferences(
    '`stream_options` without `stream` are ignored',
    BOTH,
    CHAT,
    'test_chat_completion_stream_options',
  ),
  ...listDifferences("only an engine has SageMaker's routes", BOTH, CHAT, 'test_invocations'),
  ...listDifferences(
    'token mode renders the prompt itself, and ignores ids of an earlier prefill',
    ['token'],
    'openai/chat_completion/test_chat_completion.py',
    'test_kv_transfer_prompt_token_ids_round_trip',
    'test_kv_transfer_prompt_token_ids_streaming',
  ),
  ...listDifferences(
    'a turn records what was sampled, not its prompt',
    ['token'],
    'openai/chat_completion/test_chat_echo.py',
    'test_chat_session_with_echo_and_continue_final_message',
  ),
  ...listDifferences(
    'a turn records what was sampled, not its prompt',
    BOTH,
    COMPLETION,
    'test_echo_logprob_completion',
  ),
  ...listDifferences(
    "vLLM's route for token ids does not report the tokens that it adds to its cache",
    ['token'],
    'anthropic/test_messages.py',
    'test_anthropic_streaming_cache_usage',
  ),
  ...listDifferences(
    ALTERNATIVES,
    BOTH,
    'openai/chat_completion/test_logprob_token_ids.py',
    'test_logprob_token_ids_returns_requested_ids',
    'test_logprob_token_ids_stream_with_no_top_k',
  ),
  ...listDifferences(
    ONE_PROMPT,
    BOTH,
    COMPLETION,
    'test_prompt_logprobs_completion',
    'test_batch_completions',
  ),
  ...listDifferences(CONTINUOUS_USAGE, BOTH, COMPLETION, 'test_completion_stream_options'),
  ...listDifferences(
    CONTINUOUS_USAGE,
    BOTH,
    'openai/test_chunked_prompt.py',
    'test_completion_stream_options_and_logprobs_with_long_prompts',
    'test_chat_completion_stream_options_and_logprobs_with_long_prompts',
  ),
  ...listDifferences(
    'the proxy validates the prompt itself, with other messages',
    BOTH,
    'openai/completion/test_prompt_validation.py',
    'test_empty_prompt',
  ),
  ...listDifferences(
    'the proxy ignores `enable_response_messages`',
    BOTH,
    'openai/responses/test_simple.py',
    'test_enable_response_messages',
  ),
  ...listDifferences(
    'background responses are not supported, so there is no route to cancel one',
    BOTH,
    'openai/responses/test_stateful.py',
    'test_background',
    'test_background_error',
    'test_cancel_completed',
  ),
  ...listDifferences(
    'ids that are not requested are absent, and not null',
    BOTH,
    'openai/test_return_token_ids.py',
    'test_basic_completion_with_emoji',
  ),
  ...listDifferences(
    NO_TOKENIZER,
    ['chat'],
    TOKENIZATION,
    'test_tokenize_completions',
    'test_tokenize_chat',
    'test_tokenize_with_return_token_strs',
    'test_detokenize',
  ),
  ...listDifferences(
    '`/tokenize` does not take `continue_final_message`',
    ['token'],
    TOKENIZATION,
    'test_tokenize_chat',
  ),
  ...listDifferences(
    'the proxy has no `/tokenizer_info`',
    BOTH,
    TOKENIZATION,
    'test_tokenizer_info_basic',
    'test_tokenizer_info_schema',
    'test_tokenizer_info_consistency_with_tokenize',
    'test_tokenizer_info_chat_template',
  ),
]

/**
 * Prefixes of the names of excluded cases: their outcome depends on the samples of the tiny model, or on the number of
 * tokens in a chunk.
 */
export const EXCLUDED: readonly string[] = [
  `${CHAT}::test_chat_completion_n_parameter_streaming`,
  `${CHAT}::test_response_format_`,
  `${CHAT}::test_structured_outputs_`,
  `${COMPLETION}::test_parallel_streaming`,
  'openai/chat_completion/test_chat_logit_bias_validation.py::test_chat_logit_bias_valid',
  'openai/chat_completion/test_completion_with_function_calling.py::test_function_tool_use',
  'openai/chat_completion/test_include_reasoning.py::test_reasoning_tokens_in_usage',
  'openai/responses/test_function_call.py::test_function_calling_with_streaming_expected_arguments',
  'openai/responses/test_function_call.py::test_named_tool_use',
]
