/**
 * Finish reasons of engines that stopped the model before it finished or reached its limit: vLLM's repetition detection
 * (`FinishReason` in `vllm/v1/engine/__init__.py`) and DeepSeek's API under load.
 */
const ENGINE_CUTS: ReadonlySet<string> = new Set(['repetition', 'insufficient_system_resource'])

/** Returns whether the engine cut the completion off for a reason other than its length. */
export function isCutByEngine(finishReason: string | null): boolean {
  return finishReason !== null && ENGINE_CUTS.has(finishReason)
}

/** Returns whether the completion was cut off. */
export function isCutOff(finishReason: string | null): boolean {
  return finishReason === 'length' || isCutByEngine(finishReason)
}
