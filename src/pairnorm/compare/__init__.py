"""Methods side by side under one protocol: remedies against oversmoothing, by depth."""
