"""The dashboard of a recorded run: overview and timeline. Shows what the analysis holds."""

from __future__ import annotations

from ddpdoctor.dashboards.app import create_app

__all__ = ["create_app"]
