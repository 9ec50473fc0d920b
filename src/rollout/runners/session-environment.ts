import type { AgentTask } from './runner.ts'

/**
 * The variables by which agents find a session, as the clients of OpenAI, LiteLLM, Anthropic and Claude Code read them.
 */
export function sessionEnvironment({
  openaiBaseUrl,
  anthropicBaseUrl,
  apiKey,
  modelName,
}: AgentTask): Record<string, string> {
  return {
    OPENAI_BASE_URL: openaiBaseUrl,
    OPENAI_API_BASE: openaiBaseUrl,
    OPENAI_API_KEY: apiKey,
    ANTHROPIC_BASE_URL: anthropicBaseUrl,
    ANTHROPIC_AUTH_TOKEN: apiKey,
    ...(modelName !== undefined && { OPENAI_MODEL: modelName, ANTHROPIC_MODEL: modelName }),
  }
}

/** What programs need to run at all, wherever they run. */
const PASSED_ON = [
  ...['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'TERM', 'TZ', 'LANG', 'LANGUAGE', 'LD_LIBRARY_PATH'],
  ...['SSL_CERT_FILE', 'SSL_CERT_DIR', 'REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE', 'NODE_EXTRA_CA_CERTS'],
]

/**
 * Of the trainer's own environment what programs need to run. The rest is the trainer's: keys of llm-proxy, tokens of
 * model hubs, of clouds and of trackers are nobody else's.
 * @param more names of further variables
 */
export function outerEnvironment(more: readonly string[] = []): NodeJS.ProcessEnv {
  const isPassedOn = (name: string) =>
    PASSED_ON.includes(name) || name.startsWith('LC_') || more.includes(name)
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => isPassedOn(name)))
}

/** @throws TypeError that names the variable which is neither text nor a number nor a boolean */
export function textVariables(variables: Readonly<Record<string, unknown>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(variables).map(([name, value]) => {
      if (!['string', 'number', 'boolean'].includes(typeof value)) {
        throw new TypeError(`the environment variable ${name} must be text`)
      }
      return [name, String(value)]
    }),
  )
}
