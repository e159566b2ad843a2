"""All stand-ins, in the order of the tables."""

from __future__ import annotations

from tests.support.vendors.anthropic import Anthropic
from tests.support.vendors.base import StandIn
from tests.support.vendors.bedrock import Bedrock
from tests.support.vendors.deepseek import DeepSeek
from tests.support.vendors.gemini import Gemini
from tests.support.vendors.gemini_openai import GeminiOpenAI
from tests.support.vendors.groq import Groq
from tests.support.vendors.llama_cpp import LlamaCpp
from tests.support.vendors.mistral import Mistral
from tests.support.vendors.ollama import Ollama
from tests.support.vendors.openai_chat import OpenAIChat
from tests.support.vendors.openai_responses import OpenAIResponses
from tests.support.vendors.vllm import VLLM
from tests.support.vendors.xai import XAI

STAND_INS: tuple[type[StandIn], ...] = (
    OpenAIChat,
    OpenAIResponses,
    Anthropic,
    Gemini,
    GeminiOpenAI,
    Mistral,
    Groq,
    DeepSeek,
    XAI,
    Bedrock,
    Ollama,
    VLLM,
    LlamaCpp,
)
